// The TCP rendezvous over real sockets of this host, also among strangers, and
// with ranks that end or stop.
#include "collectives/rendezvous/tcp_rendezvous.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_host.h"
#include "collectives/rendezvous/rendezvous_server.h"
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

// Strangers, and ranks that end or stop.

// At once, for what must not wait for a deadline of kPatience: far less than
// that, and more than a busy machine delays.
constexpr absl::Duration kAtOnce = absl::Seconds(5);

using Entries = std::set<std::string>;

Entries EntriesOf(const char* folder) {
  Entries entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries.insert(entry.path());
  }
  return entries;
}

// Waits until this process has `count` threads that are not in `before`:
// joining one returns a little before the kernel forgets it. Threads of
// `before` may end meanwhile.
bool AwaitNewThreads(const Entries& before, int count) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    int found = 0;
    for (const std::string& thread : EntriesOf("/proc/self/task")) {
      if (!before.contains(thread)) ++found;
    }
    if (found == count) return true;
    std::this_thread::yield();
  }
  return false;
}

// Ends the connection as a reset, not in good order.
void Reset(OwnedFd socket) {
  const linger at_once = {1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

// Runs `body` in a child; call before this process has threads.
pid_t StartChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  return child;
}

// Rank 0 of two, which meets again and again.
pid_t StartRankZero(const ReservedPort& port) {
  return StartChild([&port] {
    const auto zero = OpenTcp(TcpOptions(0, 2, port.port()));
    while (zero->Exchange("zero").ok()) {
    }
  });
}

void Kill(pid_t child) {
  kill(child, SIGKILL);
  pid_t ended;
  do {
    ended = waitpid(child, nullptr, 0);
  } while (ended < 0 && errno == EINTR);
  EXPECT_EQ(ended, child);
}

// What a stranger may send in place of a request to join.
std::vector<std::string> Garbage() {
  std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\n\r\n", std::string(1 << 20, '\0'), "LSRT",
      "LSRT\x02",  // Another version.
      // A size of 4 GiB, of a request to join and of a blob.
      std::string("LSRT\x01\x02\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 20),
      std::string("LSRT\x01\x05\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 20),
      EncodeFrame({FrameKind::kPublish, 0, 1, "not let in"}),
      EncodeFrame({FrameKind::kFailure, 0, 14, "not let in"}),
      EncodeFrame({FrameKind::kJoin, 1, 2, std::string(kJoinBytes, 'j')}),
      EncodeFrame({FrameKind::kJoin, 1, 2, std::string(kJoinBytes, 'j')})
          .substr(0, 50)};
  std::mt19937 random(17);
  for (int i = 0; i < 50; ++i) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    garbage.push_back(bytes);
  }
  return garbage;
}

TEST(TcpRendezvousFaultsTest, StrangersChangeNothing) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 3, 0));
  std::vector<OwnedFd> half_open;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& bytes : Garbage()) {
      OwnedFd socket = ConnectRaw(ranks[0]->port());
      // All of it, or until the server has had enough.
      size_t sent = 0;
      while (sent < bytes.size()) {
        const auto size =
            SendSome(socket, absl::string_view(bytes).substr(sent));
        if (!size.has_value() || *size == 0) break;
        sent += *size;
      }
      if (sent % 2 == 0) {
        Reset(std::move(socket));
      } else {
        half_open.push_back(std::move(socket));
      }
    }
    for (const Blobs& blobs : ExchangeAll(ranks)) {
      EXPECT_THAT(blobs, IsOkAndHolds(RankNames(3)));
    }
  }
  EXPECT_GE(half_open.size(), 10u);
}

TEST(TcpRendezvousFaultsTest, RanksJoinAmongMoreStrangersThanThereIsRoomFor) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 4, 0));
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 2 * kMaxStrangers; ++i) {
    silent.push_back(ConnectRaw(ranks[0]->port()));
  }
  for (const Blobs& blobs : ExchangeAll(ranks)) {
    EXPECT_THAT(blobs, IsOkAndHolds(RankNames(4)));
  }
}

TEST(TcpRendezvousFaultsTest, RankThatSendsOneByteAtATimeMeetsTheOthers) {
  const auto zero = OpenTcp(TcpOptions(0, 2, 0));
  RawRank slow(TcpOptions(1, 2, zero->port()), 1);
  slow.client().Publish(1, "slow");
  Blobs result = absl::UnknownError("not set");
  std::thread waiting([&] { result = slow.Finish(); });
  EXPECT_THAT(zero->Exchange("zero"),
              IsOkAndHolds(ElementsAre("zero", "slow")));
  waiting.join();
  EXPECT_THAT(result, IsOkAndHolds(ElementsAre("zero", "slow")));
}

TEST(TcpRendezvousFaultsTest, RankThatVanishesIsReportedToAllAtOnce) {
  for (const bool resets : {false, true}) {
    TcpRanks ranks;
    ranks.push_back(OpenTcp(TcpOptions(0, 4, 0)));
    const int port = ranks[0]->port();
    ranks.push_back(OpenTcp(TcpOptions(1, 4, port)));
    RawRank two(TcpOptions(2, 4, port), 1000);
    two.client().Publish(1, "two");
    two.Join();
    const absl::Time start = absl::Now();
    std::thread dies([&] {
      OwnedFd socket = two.TakeSocket();
      if (resets) Reset(std::move(socket));
    });
    for (const Blobs& blobs : ExchangeAll(ranks)) {
      EXPECT_THAT(blobs, StatusIs(absl::StatusCode::kUnavailable,
                                  HasSubstr("rank 2 (pid 77) died")));
    }
    dies.join();
    EXPECT_LT(absl::Now() - start, kAtOnce);
  }
}

// Rank 1 is a process that meets once, and is killed before the second round.
TEST(TcpRendezvousFaultsTest, KilledRankIsReportedAtOnce) {
  const ReservedPort port;
  const pid_t child = StartChild([&] {
    const auto one = OpenTcp(TcpOptions(1, 3, port.port()));
    if (one->Exchange("one").ok()) pause();
  });
  const TcpRanks zero_and_two = [&] {
    TcpRanks ranks;
    for (const int rank : {0, 2}) {
      ranks.push_back(OpenTcp(TcpOptions(rank, 3, port.port())));
    }
    return ranks;
  }();
  for (const Blobs& blobs : ExchangeAll(zero_and_two)) {
    ASSERT_THAT(blobs, IsOk());
  }
  Kill(child);
  const absl::Time start = absl::Now();
  for (const Blobs& blobs : ExchangeAll(zero_and_two)) {
    EXPECT_THAT(
        blobs,
        StatusIs(absl::StatusCode::kUnavailable,
                 HasSubstr(absl::StrCat("rank 1 (pid ", child, ") died"))));
  }
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

TEST(TcpRendezvousFaultsTest, KilledRankZeroIsReportedAtOnce) {
  const ReservedPort port;
  const pid_t child = StartRankZero(port);
  const auto one = OpenTcp(TcpOptions(1, 2, port.port()));
  ASSERT_THAT(one->Exchange("one"), IsOk());
  const absl::Time start = absl::Now();
  Kill(child);
  EXPECT_THAT(one->Exchange("one"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("rank 0 (pid ", child,
                                              ") is "
                                              "gone"))));
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

TEST(TcpRendezvousFaultsTest, StoppedRankZeroIsReportedAtTheDeadline) {
  const ReservedPort port;
  const pid_t child = StartRankZero(port);
  TcpRendezvousOptions options = TcpOptions(1, 2, port.port());
  // Stays, as the child would end if it left.
  const auto one = OpenTcp(options);
  ASSERT_THAT(one->Exchange("one"), IsOk());
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  options.timeout = absl::Milliseconds(50);
  const absl::Time start = absl::Now();
  EXPECT_THAT(OpenTcp(options)->Exchange("one"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 did not answer within 50ms")));
  EXPECT_LT(absl::Now() - start, kAtOnce);
  Kill(child);
}

// What is sent to a rank that does not read waits, and is handed over when
// rank 0 is done; a rank that never reads delays rank 0 by a second at most.
TEST(TcpRendezvousFaultsTest, RankZeroHandsOverWhatOthersHaveNotRead) {
  auto zero = OpenTcp(TcpOptions(0, 3, 0));
  RawRank reads(TcpOptions(1, 3, zero->port()), 1000);
  RawRank never(TcpOptions(2, 3, zero->port()), 1000);
  const std::string large(kMaxBlobBytes, 'x');
  for (RawRank* rank : {&reads, &never}) {
    rank->Join();
    rank->client().Publish(1, large);
    rank->SendAll();
  }
  EXPECT_THAT(zero->Exchange(large), IsOk());
  const absl::Time start = absl::Now();
  zero.reset();
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_THAT(reads.Finish(), IsOkAndHolds(ElementsAre(large, large, large)));
}

// Rank 0 has few descriptors, and strangers take more than there are.
TEST(TcpRendezvousFaultsTest, RanksJoinWhenStrangersTakeAllDescriptors) {
  const ReservedPort port;
  const pid_t child = StartChild([&] {
    const rlimit few = {30, 30};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) _exit(2);
    auto zero = OpenTcp(TcpOptions(0, 2, port.port()));
    const bool met = zero->Exchange("zero").ok();
    zero.reset();
    _exit(met ? 0 : 1);
  });
  // Once it listens.
  TcpRendezvousOptions other = TcpOptions(1, 2, port.port());
  other.token = "another token";
  EXPECT_THAT(
      OpenTcp(other)->Exchange(""),
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("rank 1")));
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(ConnectRaw(port.port()));
  EXPECT_THAT(OpenTcp(TcpOptions(1, 2, port.port()))->Exchange("one"),
              IsOkAndHolds(ElementsAre("zero", "one")));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TcpRendezvousFaultsTest, LeavesNoThreadAndNoDescriptor) {
  const Entries threads = EntriesOf("/proc/self/task");
  const Entries descriptors = EntriesOf("/proc/self/fd");
  {
    const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 3, 0));
    EXPECT_TRUE(AwaitNewThreads(threads, 1));
    for (const Blobs& blobs : ExchangeAll(ranks)) EXPECT_THAT(blobs, IsOk());
    const OwnedFd stranger = ConnectRaw(ranks[0]->port());
  }
  EXPECT_TRUE(AwaitNewThreads(threads, 0));
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace lockstep
