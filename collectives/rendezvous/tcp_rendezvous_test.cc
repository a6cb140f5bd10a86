// Tests of the TCP rendezvous over real sockets of this host, also among
// strangers, and with ranks that end or stop.
#include "collectives/rendezvous/tcp_rendezvous.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "collectives/rendezvous/sockets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The timeout of each wait: much longer than the event takes, much shorter than
// a test may take.
constexpr absl::Duration kPatience = absl::Seconds(20);

using Blobs = absl::StatusOr<std::vector<std::string>>;
using TcpRanks = std::vector<std::unique_ptr<TcpRendezvous>>;

// Returns options for 127.0.0.1, with a token and kPatience.
TcpRendezvousOptions TcpOptions(int rank, int world_size, int port) {
  return {.port = port,
          .token = "the token",
          .listen_address = "",
          .rank = rank,
          .world_size = world_size,
          .timeout = kPatience};
}

std::unique_ptr<TcpRendezvous> OpenTcp(const TcpRendezvousOptions& options) {
  auto rendezvous = TcpRendezvous::Open(options);
  EXPECT_THAT(rendezvous, IsOk());
  return *std::move(rendezvous);
}

// Opens rank 0, at a free port if options.port is 0, and the other ranks.
TcpRanks OpenAllTcp(TcpRendezvousOptions options) {
  TcpRanks ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(OpenTcp(options));
    options.port = ranks[0]->port();
  }
  return ranks;
}

// Returns the blob of `rank`: "rank <rank>", and `more` further bytes.
std::string BlobOf(int rank, size_t more = 0) {
  return absl::StrCat("rank ", rank, std::string(more, 'x'));
}

// Runs one Exchange per rank, each in a thread. Returns the results.
std::vector<Blobs> ExchangeAll(const TcpRanks& ranks, size_t more = 0) {
  std::vector<Blobs> results(ranks.size(), absl::UnknownError("not set"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = ranks[i]->Exchange(BlobOf(ranks[i]->rank(), more));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Returns what ExchangeAll should return for each rank.
std::vector<std::string> RankNames(int world_size, size_t more = 0) {
  std::vector<std::string> names;
  for (int i = 0; i < world_size; ++i) names.push_back(BlobOf(i, more));
  return names;
}

SocketAddress LoopbackAt(int port) {
  const auto addresses = Resolve("127.0.0.1", port);
  EXPECT_THAT(addresses, IsOk());
  return addresses->front();
}

// A port that no other program is given while this object lives. Rank 0 can
// listen at it, because both sockets set SO_REUSEADDR.
class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const SocketAddress free = LoopbackAt(0);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&free.storage),
                   free.size),
              0);
  }
  int port() const { return PortOf(fd_); }

 private:
  OwnedFd fd_;
};

// Connects to rank 0.
OwnedFd ConnectRaw(int port) {
  auto socket = Connect(LoopbackAt(port), kPatience);
  EXPECT_THAT(socket, IsOk());
  return *std::move(socket);
}

// Waits until bytes arrive and returns them, or "" if the connection ended.
std::string ReceiveRaw(const OwnedFd& socket) {
  pollfd waiting = {socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, PollMilliseconds(Deadline(kPatience))), 1);
  std::array<char, 4096> buffer;
  return {buffer.data(), ReceiveSome(socket, buffer).value_or(0)};
}

// A rank whose bytes the test sends and receives; its pid is 77.
class RawRank {
 public:
  explicit RawRank(const TcpRendezvousOptions& options)
      : client_({"raw",
                 {options.rank, static_cast<uint32_t>(options.world_size), 77},
                 options.token},
                Nonce{1}),
        socket_(ConnectRaw(options.port)) {}

  RendezvousClient& client() { return client_; }
  // Hands the socket to the test, which ends it in its own way.
  OwnedFd TakeSocket() { return std::move(socket_); }

  void SendAll() {
    while (!client_.Output().empty()) {
      const std::optional<size_t> sent = SendSome(socket_, client_.Output());
      ASSERT_TRUE(sent.has_value());
      client_.Sent(*sent);
    }
  }

  // Receives, and sends the output, until the server has let the rank in.
  void Join() {
    while (!client_.joined() && !client_.outcome().has_value()) {
      client_.Receive(ReceiveRaw(socket_));
      SendAll();
    }
  }

  // Receives and sends in the same way until the round has ended.
  Blobs Finish() {
    SendAll();
    while (!client_.outcome().has_value()) {
      const std::string bytes = ReceiveRaw(socket_);
      if (bytes.empty()) return absl::UnavailableError("the connection ended");
      client_.Receive(bytes);
      SendAll();
    }
    return *client_.outcome();
  }

 private:
  RendezvousClient client_;
  OwnedFd socket_;
};

TEST(TcpRendezvousTest, RanksMeetInEveryRound) {
  for (const int world_size : {1, 2, 3, 5, 16}) {
    const TcpRanks ranks = OpenAllTcp(TcpOptions(0, world_size, 0));
    for (int round = 0; round < 10; ++round) {
      // Every fifth round uses blobs that reach kMaxBlobBytes for rank 10.
      const size_t more = round % 5 == 0 ? kMaxBlobBytes - 7 : 0;
      ASSERT_THAT(ExchangeAll(ranks, more),
                  Each(IsOkAndHolds(RankNames(world_size, more))));
    }
  }
}

TEST(TcpRendezvousTest, RanksMeetAtNamesAndNumbers) {
  bool has_ipv6 = true;
  for (const char* address : {"127.0.0.1", "::1", "localhost"}) {
    TcpRendezvousOptions options = TcpOptions(0, 2, 0);
    options.address = address;
    const auto addresses = Resolve(options.address, 0);
    if (options.address == "::1" &&
        (!addresses.ok() || !Listen(addresses->front()).ok())) {
      has_ipv6 = false;
      continue;
    }
    EXPECT_THAT(ExchangeAll(OpenAllTcp(options)),
                Each(IsOkAndHolds(RankNames(2))));
  }
  if (!has_ipv6) GTEST_SKIP() << "this host has no IPv6";
}

TEST(TcpRendezvousTest, EveryRankIsToldOfABlobThatIsTooLarge) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 2, 0));
  const auto too_large =
      StatusIs(absl::StatusCode::kInvalidArgument,
               "rank 1 publishes 65537 bytes: more than 65536");
  std::thread zero([&] { EXPECT_THAT(ranks[0]->Exchange(""), too_large); });
  EXPECT_THAT(ranks[1]->Exchange(std::string(kMaxBlobBytes + 1, 'x')),
              too_large);
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
    EXPECT_THAT(ExchangeAll(ranks), Each(IsOk()));
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
  const struct {
    const char* address;
    int rank, port;
    absl::StatusCode code;
    testing::Matcher<std::string> message;
  } kCases[] = {
      {"127.0.0.1", 0, -1, absl::StatusCode::kInvalidArgument,
       HasSubstr("port -1")},
      {"127.0.0.1", 0, 65536, absl::StatusCode::kInvalidArgument,
       HasSubstr("port 65536")},
      {"127.0.0.1", 1, 0, absl::StatusCode::kInvalidArgument,
       HasSubstr("port 0")},
      {"127.0.0.1", 2, 1, absl::StatusCode::kInvalidArgument,
       "rank 2 is outside [0, 2)"},
      {"", 0, 0, absl::StatusCode::kInvalidArgument,
       "the rendezvous address is empty"},
  };
  for (const auto& test : kCases) {
    TcpRendezvousOptions options = TcpOptions(test.rank, 2, test.port);
    options.address = test.address;
    EXPECT_THAT(TcpRendezvous::Open(options).status(),
                StatusIs(test.code, test.message));
  }
}

TEST(TcpRendezvousTest, OnlyLoopbackNeedsNoToken) {
  TcpRendezvousOptions options = TcpOptions(0, 2, 0);
  options.token = "";
  EXPECT_THAT(ExchangeAll(OpenAllTcp(options)),
              Each(IsOkAndHolds(RankNames(2))));
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("an address that is not loopback needs a token"));
  options.listen_address = "0.0.0.0";
  EXPECT_THAT(TcpRendezvous::Open(options).status(), refused);
  options.address = "0.0.0.0";
  options.rank = 1;
  options.port = 1;
  EXPECT_THAT(TcpRendezvous::Open(options).status(), refused);
  // With a token, rank 0 may listen at every address.
  options = TcpOptions(0, 2, 0);
  options.listen_address = "0.0.0.0";
  EXPECT_THAT(ExchangeAll(OpenAllTcp(options)),
              Each(IsOkAndHolds(RankNames(2))));
}

// Collects the lines that a rendezvous reports, at a short interval.
class Told {
 public:
  void ListenTo(TcpRendezvousOptions& options) {
    options.tell_every = absl::Milliseconds(20);
    options.tell = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> lines() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }
  // Waits for a line that ends in `text`.
  void Await(const std::string& text) {
    const Deadline deadline(kPatience);
    bool is_told = false;
    while (!is_told && !deadline.passed()) {
      const std::vector<std::string> told = lines();
      is_told = std::any_of(
          told.begin(), told.end(),
          [&](const std::string& line) { return absl::EndsWith(line, text); });
      if (!is_told) absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(is_told) << text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(TcpRendezvousTest, TellsAtOnceAndAgainForWhomARankWaits) {
  const ReservedPort port;
  const std::string at = absl::StrCat(" 127.0.0.1:", port.port());
  Told told[2];
  std::thread threads[2];
  const auto start = [&](int rank) {
    TcpRendezvousOptions options = TcpOptions(rank, 3, port.port());
    told[rank].ListenTo(options);
    threads[rank] = std::thread(
        [options] { EXPECT_THAT(OpenTcp(options)->Exchange(""), IsOk()); });
  };
  start(1);
  told[1].Await(absl::StrCat("for rank 0 at", at, " (Connection refused)"));
  start(0);
  told[0].Await(absl::StrCat("at", at, " for rank 2"));
  told[1].Await(absl::StrCat("at", at, " for the other ranks"));
  EXPECT_THAT(OpenTcp(TcpOptions(2, 3, port.port()))->Exchange(""), IsOk());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told[1].lines()[0], "rank 1 waits for rank 0 at" + at);
  EXPECT_THAT(told[1].lines()[1],
              StartsWith("rank 1 has waited 0 for rank 0 at"));
  EXPECT_THAT(told[0].lines()[0], StartsWith("rank 0 waits at" + at));
}

TEST(TcpRendezvousTest, RefusesAtOnceANameThatDoesNotResolve) {
  for (const int rank : {0, 1}) {
    Told told;
    TcpRendezvousOptions options = TcpOptions(rank, 2, 7);
    told.ListenTo(options);
    options.timeout = absl::Hours(1);
    options.address = "nobody";
    options.resolver = [](const std::string& host, int) {
      return absl::NotFoundError(absl::StrCat("no ", host));
    };
    EXPECT_THAT(TcpRendezvous::Open(options).status(),
                StatusIs(absl::StatusCode::kNotFound,
                         "rendezvous nobody:7: cannot resolve nobody: "
                         "no nobody"));
    EXPECT_THAT(told.lines(), testing::IsEmpty());
  }
}

TEST(TcpRendezvousTest, AsksAgainIfTheResolverCannotAnswerAndSaysSo) {
  const ReservedPort port;
  TcpRendezvousOptions options = TcpOptions(0, 2, port.port());
  const auto zero = OpenTcp(options);
  std::thread exchange([&] { EXPECT_THAT(zero->Exchange(""), IsOk()); });
  Told told;
  told.ListenTo(options);
  options.timeout = kPatience;
  options.rank = 1;
  options.address = "host0";
  int asked = 0;
  options.resolver = [&](const std::string&,
                         int to) -> absl::StatusOr<std::vector<SocketAddress>> {
    if (++asked < 3) return absl::UnavailableError("try again");
    return Resolve("127.0.0.1", to);
  };
  EXPECT_THAT(OpenTcp(options)->Exchange(""), IsOk());
  exchange.join();
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(told.lines()[0], absl::StrCat("rank 1 waits for rank 0 at host0:",
                                          port.port(), " (try again)"));
}

// An address is answered without a thread, since a thread might not run before
// a short deadline.
TEST(HostLookupTest, AnswersForAnAddressAtOnce) {
  HostLookup lookup(Resolve, "127.0.0.1", 7);
  const auto* const answer = lookup.Await(absl::ZeroDuration());
  ASSERT_NE(answer, nullptr);
  EXPECT_THAT(*answer, IsOk());
}

TEST(TcpRendezvousTest, GivesUpAResolverAtTheDeadline) {
  std::promise<void> ends, has_ended;
  const Resolver silent = [&](const std::string&, int) {
    ends.get_future().wait();
    has_ended.set_value();
    return absl::UnavailableError("late");
  };
  const Resolver busy = [](const std::string&, int) {
    return absl::UnavailableError("try again");
  };
  for (const auto& [resolver, trouble] :
       {std::pair(silent, "the resolver does not answer"),
        std::pair(busy, "try again")}) {
    Told told;
    TcpRendezvousOptions options = TcpOptions(1, 2, 7);
    told.ListenTo(options);
    options.timeout = absl::Milliseconds(1200);
    options.address = "host0";
    options.resolver = resolver;
    EXPECT_THAT(
        TcpRendezvous::Open(options).status(),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 absl::StrCat("rendezvous host0:7: rank 0 did not answer: "
                              "cannot resolve host0 within 1.2s: ",
                              trouble)));
    EXPECT_THAT(told.lines(),
                testing::Contains(absl::StrCat(
                    "rank 1 waits for rank 0 at host0:7 (", trouble, ")")));
  }
  ends.set_value();
  EXPECT_EQ(has_ended.get_future().wait_for(absl::ToChronoSeconds(kPatience)),
            std::future_status::ready);
}

TEST(TcpRendezvousTest, EveryRankIsToldWhoDidNotComeAndKeepsTheError) {
  TcpRendezvousOptions impatient = TcpOptions(0, 4, 0);
  impatient.timeout = absl::Milliseconds(50);
  TcpRanks ranks;
  ranks.push_back(OpenTcp(impatient));
  RawRank two(TcpOptions(2, 4, ranks[0]->port()));
  two.client().Publish(1, "");
  two.Join();
  two.SendAll();
  const absl::Status status = ranks[0]->Exchange("").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               AllOf(HasSubstr("ranks 1, "),
                                     HasSubstr("3 of 4 did not come within "
                                               "50ms"))));
  EXPECT_EQ(ranks[0]->Exchange("").status(), status);
  // A rank that joins too late gets the same error, at once.
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
  // A listening process that does not answer, for example because it is
  // stopped.
  const auto silent = Listen(LoopbackAt(port.port()));
  ASSERT_THAT(silent, IsOk());
  EXPECT_THAT(OpenTcp(options)->Exchange(""),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 did not answer within 50ms")));
}

// Tests with strangers, and with ranks that end or stop.

// The limit for events that must not wait until kPatience: far shorter than
// that, and longer than a busy machine's delays.
constexpr absl::Duration kAtOnce = absl::Seconds(5);

using Entries = std::set<std::string>;

Entries EntriesOf(const char* folder) {
  Entries entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries.insert(entry.path());
  }
  return entries;
}

// Waits until this process has `count` threads that are not in `before`. The
// kernel may list a thread for a short time after it was joined. Threads of
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

// Ends the connection by a reset, not in an orderly way.
void Reset(OwnedFd socket) {
  const linger at_once = {1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

// Runs `body` in a child. Must be called before this process has threads.
pid_t StartChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  return child;
}

void Kill(pid_t child) {
  ASSERT_TRUE(SendSignal(child, SIGKILL));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// Returns data that a stranger may send instead of a request to join.
std::vector<std::string> Garbage() {
  std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\n\r\n", std::string(1 << 20, '\0'), "LSRT",
      "LSRT\x02",  // Another version.
      // A size of 4 GiB, for a request to join and for a blob.
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
      // Sends all bytes, or stops when the server closes the connection.
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
    EXPECT_THAT(ExchangeAll(ranks), Each(IsOkAndHolds(RankNames(3))));
  }
  EXPECT_GE(half_open.size(), 10u);
}

TEST(TcpRendezvousFaultsTest, RanksJoinAmongMoreStrangersThanThereIsRoomFor) {
  const TcpRanks ranks = OpenAllTcp(TcpOptions(0, 4, 0));
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 2 * kMaxStrangers; ++i) {
    silent.push_back(ConnectRaw(ranks[0]->port()));
  }
  EXPECT_THAT(ExchangeAll(ranks), Each(IsOkAndHolds(RankNames(4))));
}

TEST(TcpRendezvousFaultsTest, RankThatIsCutOffIsReportedToAllAtOnce) {
  TcpRanks ranks;
  ranks.push_back(OpenTcp(TcpOptions(0, 4, 0)));
  const int port = ranks[0]->port();
  ranks.push_back(OpenTcp(TcpOptions(1, 4, port)));
  RawRank two(TcpOptions(2, 4, port));
  two.client().Publish(1, "two");
  two.Join();
  const absl::Time start = absl::Now();
  std::thread dies([&] { Reset(two.TakeSocket()); });
  EXPECT_THAT(ExchangeAll(ranks),
              Each(StatusIs(absl::StatusCode::kUnavailable,
                            HasSubstr("rank 2 (pid 77) died"))));
  dies.join();
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

// Rank 1 is a process that exchanges once, and is killed before the second
// round.
TEST(TcpRendezvousFaultsTest, KilledRankIsReportedAtOnce) {
  const ReservedPort port;
  const pid_t child = StartChild([&] {
    const auto one = OpenTcp(TcpOptions(1, 3, port.port()));
    if (one->Exchange("one").ok()) pause();
  });
  TcpRanks zero_and_two;
  for (const int rank : {0, 2}) {
    zero_and_two.push_back(OpenTcp(TcpOptions(rank, 3, port.port())));
  }
  ASSERT_THAT(ExchangeAll(zero_and_two), Each(IsOk()));
  Kill(child);
  const absl::Time start = absl::Now();
  EXPECT_THAT(
      ExchangeAll(zero_and_two),
      Each(StatusIs(absl::StatusCode::kUnavailable,
                    HasSubstr(absl::StrCat("rank 1 (pid ", child, ") died")))));
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

TEST(TcpRendezvousFaultsTest, KilledRankZeroIsReportedAtOnce) {
  const ReservedPort port;
  const pid_t child = StartChild([&port] {
    const auto zero = OpenTcp(TcpOptions(0, 2, port.port()));
    while (zero->Exchange("zero").ok()) {
    }
  });
  const auto one = OpenTcp(TcpOptions(1, 2, port.port()));
  ASSERT_THAT(one->Exchange("one"), IsOk());
  const absl::Time start = absl::Now();
  Kill(child);
  EXPECT_THAT(
      one->Exchange("one"),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr(absl::StrCat("rank 0 (pid ", child, ") is gone"))));
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

// Data for a rank that does not read is kept, and is handed over when rank 0
// ends. A rank that never reads delays rank 0 by a second at most.
TEST(TcpRendezvousFaultsTest, RankZeroHandsOverWhatOthersHaveNotRead) {
  auto zero = OpenTcp(TcpOptions(0, 3, 0));
  RawRank reads(TcpOptions(1, 3, zero->port()));
  RawRank never(TcpOptions(2, 3, zero->port()));
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

// Rank 0 has few descriptors, and strangers need more than there are.
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
  // The exchange with another token fails once rank 0 listens.
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
    EXPECT_THAT(ExchangeAll(ranks), Each(IsOk()));
    const OwnedFd stranger = ConnectRaw(ranks[0]->port());
  }
  EXPECT_TRUE(AwaitNewThreads(threads, 0));
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace lockstep
