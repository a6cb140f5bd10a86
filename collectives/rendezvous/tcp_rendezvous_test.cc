// The TCP rendezvous over real sockets of this host.
#include "collectives/rendezvous/tcp_rendezvous.h"

#include <poll.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_host.h"
#include "collectives/rendezvous/tcp_rendezvous_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TcpRendezvousWorldTest : public testing::TestWithParam<int> {};

TEST_P(TcpRendezvousWorldTest, RanksMeetInEveryRound) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, GetParam(), 0));
  ASSERT_EQ(ranks.size(), static_cast<size_t>(GetParam()));
  for (int round = 0; round < 10; ++round) {
    for (const Blobs& blobs : ExchangeAll(ranks)) {
      ASSERT_THAT(blobs, IsOkAndHolds(RankNames(GetParam())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, TcpRendezvousWorldTest,
                         testing::Values(1, 2, 3, 5, 16), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

class TcpRendezvousAddressTest : public testing::TestWithParam<std::string> {};

TEST_P(TcpRendezvousAddressTest, RanksMeetThere) {
  TcpRendezvousOptions options = TcpOptions(0, 2, 0);
  options.address = GetParam();
  const auto addresses = Resolve(options.address, 0);
  if (options.address == "::1" &&
      (!addresses.ok() || !Listen(addresses->front()).ok())) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  for (const Blobs& blobs : ExchangeAll(OpenAllTcp(options))) {
    EXPECT_THAT(blobs, IsOkAndHolds(RankNames(2)));
  }
}

INSTANTIATE_TEST_SUITE_P(Names, TcpRendezvousAddressTest,
                         testing::Values("127.0.0.1", "::1", "localhost"),
                         [](const auto& info) {
                           if (info.param == "::1") return "IPv6";
                           return info.index == 0 ? "IPv4" : "Name";
                         });

TEST(TcpRendezvousTest, BlobsMayBeLarge) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 4, 0));
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&rank] {
      for (int round = 0; round < 5; ++round) {
        const Blobs blobs = rank->Exchange(
            std::string(kMaxBlobBytes, static_cast<char>('a' + rank->rank())));
        ASSERT_THAT(blobs, IsOk());
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ((*blobs)[i],
                    std::string(kMaxBlobBytes, static_cast<char>('a' + i)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TcpRendezvousTest, EveryRankIsToldOfABlobThatIsTooLarge) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 2, 0));
  std::thread zero([&] {
    EXPECT_THAT(ranks[0]->Exchange(""),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 1 publishes 65537 bytes: more than 65536"));
  });
  EXPECT_THAT(ranks[1]->Exchange(std::string(kMaxBlobBytes + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rank 1 publishes 65537 bytes: more than 65536"));
  zero.join();
}

TEST(TcpRendezvousTest, RanksMayComeBeforeRankZero) {
  const ReservedPort port;
  std::vector<std::thread> early;
  for (int rank = 1; rank < 4; ++rank) {
    early.emplace_back([&port, rank] {
      EXPECT_THAT(OpenTcp(TcpOptions(rank, 4, port.port()))
                      ->Exchange(absl::StrCat("rank ", rank)),
                  IsOkAndHolds(RankNames(4)));
    });
  }
  EXPECT_THAT(OpenTcp(TcpOptions(0, 4, port.port()))->Exchange("rank 0"),
              IsOkAndHolds(RankNames(4)));
  for (std::thread& thread : early) thread.join();
}

TEST(TcpRendezvousTest, PortCanBeUsedByTheNextRunAtOnce) {
  const ReservedPort port;
  for (int run = 0; run < 3; ++run) {
    const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 2, port.port()));
    for (const Blobs& blobs : ExchangeAll(ranks)) EXPECT_THAT(blobs, IsOk());
  }
}

TEST(TcpRendezvousTest, NamesThePortThatIsTaken) {
  const auto first = OpenTcp(TcpOptions(0, 2, 0));
  EXPECT_THAT(TcpRendezvous::Open(TcpOptions(0, 2, first->port())).status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       absl::StrCat("rendezvous 127.0.0.1:", first->port(),
                                    ": rank 0 cannot listen at 127.0.0.1:",
                                    first->port(), ": the port is taken")));
}

TEST(TcpRendezvousTest, WrongOptions) {
  for (const auto& [rank, port] :
       {std::pair<int, int>{0, -1}, {0, 65536}, {1, 0}}) {
    EXPECT_THAT(TcpRendezvous::Open(TcpOptions(rank, 2, port)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("port ", port))));
  }
  EXPECT_THAT(
      TcpRendezvous::Open(TcpOptions(2, 2, 1)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "rank 2 is outside [0, 2)"));
  TcpRendezvousOptions options = TcpOptions(0, 2, 0);
  options.address = "";
  EXPECT_THAT(TcpRendezvous::Open(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the rendezvous address is empty"));
  options.address = "no such host";
  EXPECT_THAT(TcpRendezvous::Open(options).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rendezvous no such host:0: ")));
}

TEST(TcpRendezvousTest, OnlyLoopbackNeedsNoToken) {
  TcpRendezvousOptions options = TcpOptions(0, 2, 0);
  options.token = "";
  for (const Blobs& blobs : ExchangeAll(OpenAllTcp(options))) {
    EXPECT_THAT(blobs, IsOkAndHolds(RankNames(2)));
  }
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("an address that is not loopback needs a token"));
  options.listen_address = "0.0.0.0";
  EXPECT_THAT(TcpRendezvous::Open(options).status(), refused);
  options.address = "0.0.0.0";
  options.rank = 1;
  options.port = 1;
  EXPECT_THAT(OpenTcp(options)->Exchange(""), refused);
  // With one, it may listen at every address.
  options = TcpOptions(0, 2, 0);
  options.listen_address = "0.0.0.0";
  for (const Blobs& blobs : ExchangeAll(OpenAllTcp(options))) {
    EXPECT_THAT(blobs, IsOkAndHolds(RankNames(2)));
  }
}

TEST(TcpRendezvousTest, RanksOfAnotherRunAreRefusedAndChangeNothing) {
  const auto zero = OpenTcp(TcpOptions(0, 2, 0));
  for (const char* token : {"another token", ""}) {
    TcpRendezvousOptions other = TcpOptions(1, 2, zero->port());
    other.token = token;
    EXPECT_THAT(OpenTcp(other)->Exchange("x"),
                StatusIs(absl::StatusCode::kUnauthenticated,
                         HasSubstr("rank 1 was refused")));
  }
  const auto one = OpenTcp(TcpOptions(1, 2, zero->port()));
  std::thread waiting([&] { EXPECT_THAT(one->Exchange("one"), IsOk()); });
  EXPECT_THAT(zero->Exchange("zero"), IsOkAndHolds(ElementsAre("zero", "one")));
  waiting.join();
}

TEST(TcpRendezvousTest, SecondClaimantOfARankIsRefused) {
  const auto zero = OpenTcp(TcpOptions(0, 3, 0));
  RawRank first(TcpOptions(1, 3, zero->port()), 1000);
  first.Join();
  EXPECT_THAT(OpenTcp(TcpOptions(1, 3, zero->port()))->Exchange("second"),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("rank 1 (pid 77) is there already")));
}

TEST(TcpRendezvousTest, RanksOfAnotherWorldSizeEndTheRun) {
  TcpRanks ranks;
  ranks.push_back(OpenTcp(TcpOptions(0, 2, 0)));
  ranks.push_back(OpenTcp(TcpOptions(1, 3, ranks[0]->port())));
  for (const Blobs& blobs : ExchangeAll(ranks)) {
    EXPECT_THAT(blobs,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("disagree on the world size: rank 1"),
                               HasSubstr(" says 3"), HasSubstr(" says 2"))));
  }
}

TEST(TcpRendezvousTest, EveryRankIsToldWhoDidNotComeAndKeepsTheError) {
  TcpRendezvousOptions impatient = TcpOptions(0, 4, 0);
  impatient.timeout = absl::Milliseconds(50);
  TcpRanks ranks;
  ranks.push_back(OpenTcp(impatient));
  RawRank two(TcpOptions(2, 4, ranks[0]->port()), 1000);
  two.client().Publish(1, "");
  two.Join();
  two.SendAll();
  const absl::Status status = ranks[0]->Exchange("").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("rank 1, "),
                                     HasSubstr("3 of 4 did not come within "
                                               "50ms"))));
  EXPECT_EQ(ranks[0]->Exchange("").status(), status);
  // A rank that comes too late hears the same, at once.
  EXPECT_EQ(OpenTcp(TcpOptions(3, 4, ranks[0]->port()))->Exchange("").status(),
            status);
}

TEST(TcpRendezvousTest, SaysThatRankZeroDoesNotAnswer) {
  const ReservedPort port;
  TcpRendezvousOptions options = TcpOptions(1, 2, port.port());
  options.timeout = absl::Milliseconds(50);
  EXPECT_THAT(OpenTcp(options)->Exchange(""),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 did not answer within 50ms: ")));
  // What listens says nothing, for example because it is stopped.
  const auto silent = Listen(LoopbackAt(port.port()));
  ASSERT_THAT(silent, IsOk());
  EXPECT_THAT(OpenTcp(options)->Exchange(""),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 did not answer within 50ms")));
}

TEST(TcpRendezvousTest, SaysThatSomethingElseListens) {
  const auto listener = Listen(LoopbackAt(0));
  ASSERT_THAT(listener, IsOk());
  auto one = OpenTcp(TcpOptions(1, 2, PortOf(*listener)));
  std::thread other([&] {
    pollfd waiting = {listener->get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, PollMilliseconds(kPatience)), 1);
    auto socket = Accept(*listener);
    ASSERT_THAT(socket, IsOk());
    EXPECT_TRUE(SendSome(**socket, "SSH-2.0-OpenSSH\r\n").has_value());
    EXPECT_EQ(ReceiveRaw(**socket), "");  // It is told nothing.
  });
  EXPECT_THAT(one->Exchange("secret"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("is not this run's rank 0")));
  one.reset();
  other.join();
}

}  // namespace
}  // namespace lockstep
