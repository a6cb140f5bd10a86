// What is special about groups over TCP: who may connect, ranks on several
// hosts, hosts that are cut off. conformance/collectives checks what each call
// gives, and what the others say of a rank that is killed or stopped.
#include "collectives/tcp/tcp_group.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/message_member.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "collectives/rendezvous/sockets.h"
#include "collectives/tcp/tcp_mesh.h"
#include "collectives/tcp/testing/hosts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kSecret[] = "secret";
constexpr int64_t kSlotBytes = 1024;
// Longer than anything here takes on a busy machine.
constexpr absl::Duration kLong = absl::Seconds(20);

OwnedFd NewListener() { return *Listen(Resolve(kLoopback, 0)->front()); }

// The meshes of a group in this process; `changed` may change what a rank knows
// of the others.
struct Meshes {
  explicit Meshes(
      int world_size,
      const std::function<void(int rank, std::vector<TcpEndpoint>&)>& changed =
          [](int, std::vector<TcpEndpoint>&) {}) {
    std::vector<OwnedFd> listeners;
    for (int rank = 0; rank < world_size; ++rank) {
      listeners.push_back(NewListener());
      endpoints.push_back({kLoopback, PortOf(listeners.back())});
    }
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<TcpEndpoint> known = endpoints;
      changed(rank, known);
      ranks.push_back(std::make_unique<TcpMesh>(
          RankClaim{rank, static_cast<uint32_t>(world_size), 1}, known, kSecret,
          std::move(listeners[static_cast<size_t>(rank)]), kSlotBytes));
    }
  }

  std::vector<TcpEndpoint> endpoints;
  std::vector<std::unique_ptr<TcpMesh>> ranks;
};

// Lets the mesh work until `done`; false at the deadline.
bool Work(TcpMesh& mesh, absl::FunctionRef<bool()> done,
          std::vector<std::pair<int, uint64_t>>* heard = nullptr) {
  const Deadline deadline(kLong);
  while (!done()) {
    if (deadline.passed()) return false;
    mesh.Idle({}, /*may_spin=*/false, std::chrono::milliseconds(1));
    mesh.Poll([&](int peer, const ControlMessage& message) {
      if (heard != nullptr) heard->push_back({peer, message.number});
    });
  }
  return true;
}

// Whether two ranks hear each other, both of which work here.
bool Connect(TcpMesh& a, TcpMesh& b, int rank_of_a, int rank_of_b) {
  ControlMessage message;
  message.number = 77;
  a.Post(message, std::span(&rank_of_b, 1));
  b.Post(message, std::span(&rank_of_a, 1));
  std::vector<std::pair<int, uint64_t>> at_a, at_b;
  const Deadline deadline(kLong);
  while ((at_a.empty() || at_b.empty()) && !deadline.passed()) {
    for (const auto& [mesh, heard] : {std::pair(&a, &at_a), {&b, &at_b}}) {
      int looks = 0;
      Work(
          *mesh, [&] { return ++looks > 1; }, heard);
    }
  }
  return at_a == std::vector{std::pair(rank_of_b, uint64_t{77})} &&
         at_b == std::vector{std::pair(rank_of_a, uint64_t{77})};
}

OwnedFd ConnectTo(const TcpEndpoint& there) {
  return *lockstep::Connect(Resolve(there.host, there.port)->front(), kLong);
}

// All that comes over a connection until its end, while the mesh works.
std::string AllThatComes(const OwnedFd& socket, TcpMesh& mesh) {
  std::string bytes;
  Work(mesh, [&] {
    std::array<char, 256> buffer;
    const std::optional<size_t> size = ReceiveSome(socket, buffer);
    if (size.has_value()) bytes.append(buffer.data(), *size);
    return !size.has_value();
  });
  return bytes;
}

// Of a stranger that has read the greeting, with this claim and secret.
std::string JoinBytes(const OwnedFd& socket, TcpMesh& mesh, RankClaim claim,
                      const std::string& secret) {
  FrameReader reader{FrameKinds(FrameKind::kGreeting)};
  std::optional<Frame> greeting;
  Work(mesh, [&] {
    std::array<char, 256> buffer;
    reader.Append({buffer.data(), ReceiveSome(socket, buffer).value_or(0)});
    greeting = reader.Next().value();
    return greeting.has_value();
  });
  return EncodeFrame(
      JoinFrame(secret, NonceOfGreeting(*greeting), *NewNonce(), claim));
}

TEST(TcpMeshTest, StrangersAreSentAwayAndChangeNothing) {
  const RankClaim good = {1, 2, 5};
  using Bytes = std::function<std::string(const OwnedFd&, TcpMesh&)>;
  const auto text = [](std::string bytes) -> Bytes {
    return [bytes](const OwnedFd&, TcpMesh&) { return bytes; };
  };
  const auto claims = [](RankClaim claim, std::string secret) -> Bytes {
    return [=](const OwnedFd& socket, TcpMesh& mesh) {
      return JoinBytes(socket, mesh, claim, secret);
    };
  };
  const std::pair<const char*, Bytes> strangers[] = {
      {"garbage", text(std::string(200, '\xff'))},
      {"another protocol", text("GET / HTTP/1.0\r\n\r\n")},
      {"a frame out of turn",
       text(EncodeFrame({FrameKind::kPublish, 1, 1, "blob"}))},
      {"no greeting was read",
       text(EncodeFrame(JoinFrame(kSecret, Nonce{}, Nonce{}, good)))},
      {"a wrong token", claims(good, "guess")},
      {"no token", claims(good, "")},
      {"a rank below", claims({0, 2, 5}, kSecret)},
      {"a negative rank", claims({-1, 2, 5}, kSecret)},
      {"a rank beyond", claims({2, 2, 5}, kSecret)},
      {"another group", claims({1, 3, 5}, kSecret)},
  };
  Meshes group(2);
  TcpMesh& mesh = *group.ranks[0];
  // Half open: they send nothing, or not all, and do not hang up. More than are
  // taken at a time, so that the first have to go.
  std::vector<OwnedFd> silent;
  for (int i = 0; i < kMaxStrangers + 10; ++i) {
    silent.push_back(ConnectTo(group.endpoints[0]));
    if (i % 2 == 0) SendSome(silent.back(), "LSR");
  }
  for (const auto& [name, bytes] : strangers) {
    SCOPED_TRACE(name);
    const OwnedFd socket = ConnectTo(group.endpoints[0]);
    SendSome(socket, bytes(socket, mesh));
    // Its end, after a greeting, and at most that its token is wrong.
    const std::string answer = AllThatComes(socket, mesh);
    EXPECT_THAT(answer.size(), testing::Lt(100));
    EXPECT_EQ(mesh.Lost(1), "");
  }
  EXPECT_TRUE(Connect(mesh, *group.ranks[1], 0, 1));
  EXPECT_THAT(mesh.error(), IsOk());
  // Nobody listens any more, and those that waited are gone.
  EXPECT_THAT(lockstep::Connect(
                  Resolve(kLoopback, group.endpoints[0].port)->front(), kLong)
                  .status(),
              testing::Not(IsOk()));
  AllThatComes(silent.back(), mesh);
}

// The control of the above: the same bytes with all that is asked for.
TEST(TcpMeshTest, WhoKnowsTheSecretIsTheRankOnce) {
  Meshes group(3);
  TcpMesh& mesh = *group.ranks[0];
  const OwnedFd first = ConnectTo(group.endpoints[0]);
  SendSome(first, JoinBytes(first, mesh, {1, 3, 5}, kSecret));
  std::string welcome;
  ASSERT_TRUE(Work(mesh, [&] {
    std::array<char, 256> buffer;
    welcome.append(buffer.data(), ReceiveSome(first, buffer).value_or(0));
    return welcome.size() >= kFrameHeaderBytes + kProofBytes;
  }));
  const OwnedFd second = ConnectTo(group.endpoints[0]);
  SendSome(second, JoinBytes(second, mesh, {1, 3, 6}, kSecret));
  EXPECT_EQ(AllThatComes(second, mesh), "");
  EXPECT_EQ(mesh.Lost(1), "");
}

// As tcp_mesh.cc has it.
std::string Message(int32_t kind, uint32_t size, uint64_t released,
                    const std::string& body = "") {
  const uint32_t head[] = {static_cast<uint32_t>(kind), size};
  const uint64_t numbers[] = {0, released};
  std::string bytes(reinterpret_cast<const char*>(head), sizeof(head));
  bytes.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  return bytes + body;
}

TEST(TcpMeshTest, AMemberThatTalksNonsenseIsLost) {
  const struct {
    const char* name;
    std::string bytes;
    const char* lost;
  } cases[] = {
      {"hangs up", "", "died"},
      {"a message in order", Message(3, 0, 0), "died"},
      {"half a message", Message(1, 100, 0, "ab"), "died"},
      {"pieces in order", Message(100, 3, 0, "abc") + Message(101, 0, 0),
       "died"},
      {"a negative kind", Message(-1, 0, 0), "sent what"},
      {"a kind beyond", Message(102, 0, 0), "sent what"},
      {"a long body", Message(1, ControlMessage::kMaxBody + 1, 0), "sent what"},
      {"an empty piece", Message(100, 0, 0), "sent what"},
      {"a piece larger than a slot", Message(100, kSlotBytes + 1, 0),
       "sent what"},
      {"frees what was not sent", Message(101, 0, 1), "sent what"},
      {"garbage", std::string(5000, '\xff'), "sent what"},
  };
  for (const auto& [name, bytes, lost] : cases) {
    SCOPED_TRACE(name);
    Meshes group(2);
    TcpMesh& mesh = *group.ranks[0];
    OwnedFd socket = ConnectTo(group.endpoints[0]);
    SendSome(socket, JoinBytes(socket, mesh, {1, 2, 5}, kSecret) + bytes);
    int looks = 0;
    Work(mesh, [&] { return ++looks > 20 || !mesh.Lost(1).empty(); });
    socket.Close();
    EXPECT_TRUE(Work(mesh, [&] { return !mesh.Lost(1).empty(); }));
    EXPECT_THAT(mesh.Lost(1), StartsWith(lost));
  }
}

TEST(TcpMeshTest, NoMorePiecesAreTakenThanThereAreSlots) {
  Meshes group(2);
  TcpMesh& mesh = *group.ranks[0];
  const OwnedFd socket = ConnectTo(group.endpoints[0]);
  std::string bytes = JoinBytes(socket, mesh, {1, 2, 5}, kSecret);
  for (int i = 0; i < TcpMesh::kSlots; ++i) bytes += Message(100, 1, 0, "x");
  SendSome(socket, bytes);
  EXPECT_TRUE(Work(mesh, [&] { return mesh.Received(1).has_value(); }));
  EXPECT_EQ(mesh.Lost(1), "");
  SendSome(socket, Message(100, 1, 0, "x"));
  EXPECT_TRUE(Work(mesh, [&] { return !mesh.Lost(1).empty(); }));
}

TEST(TcpMeshTest, WhatListensInTheRanksPlace) {
  const struct {
    std::string bytes;
    const char* lost;
  } cases[] = {
      {"SSH-2.0-OpenSSH_9.2\r\n", "is not where it said"},
      {EncodeFrame(GreetingFrame(Nonce{})) +
           EncodeFrame({FrameKind::kDenied, 0, 0, ""}),
       "does not know the token"},
      {EncodeFrame(GreetingFrame(Nonce{})) +
           EncodeFrame(
               {FrameKind::kWelcome, 0, 7, std::string(kProofBytes, 'x')}),
       "does not know the token"},
  };
  for (const auto& test : cases) {
    const OwnedFd listener = NewListener();
    Meshes group(2, [&](int, std::vector<TcpEndpoint>& known) {
      known[0].port = PortOf(listener);
    });
    TcpMesh& mesh = *group.ranks[1];
    OwnedFd socket;
    EXPECT_TRUE(Work(mesh, [&] {
      auto accepted = Accept(listener);
      if (accepted.ok() && accepted->has_value()) {
        socket = *std::move(*accepted);
        SendSome(socket, test.bytes);
      }
      return !mesh.Lost(0).empty();
    }));
    EXPECT_THAT(mesh.Lost(0), StartsWith(test.lost));
  }
  // Nobody: it listened when it said where.
  Meshes group(2);
  group.ranks[0].reset();
  EXPECT_TRUE(
      Work(*group.ranks[1], [&] { return !group.ranks[1]->Lost(0).empty(); }));
  EXPECT_THAT(group.ranks[1]->Lost(0), StartsWith("is gone"));
}

// Forwards connections to `there`, until it is told to stop: then both ends
// hear nothing, and see no end.
class Proxy {
 public:
  explicit Proxy(TcpEndpoint there)
      : there_(std::move(there)), thread_([this] { Run(); }) {}
  ~Proxy() {
    ends_ = true;
    thread_.join();
  }
  int port() const { return PortOf(listener_); }
  void Stop() { stopped_ = true; }

 private:
  void Run() {
    std::vector<std::array<OwnedFd, 2>> pairs;
    std::vector<char> buffer(1 << 16);
    while (!ends_) {
      std::vector<pollfd> events = {{listener_.get(), POLLIN, 0}};
      for (const auto& [a, b] : pairs) {
        events.push_back({a.get(), POLLIN, 0});
        events.push_back({b.get(), POLLIN, 0});
      }
      poll(events.data(), stopped_ ? 0 : events.size(), 5);
      if (stopped_) continue;
      for (auto& pair : pairs) {
        for (const int from : {0, 1}) {
          const size_t size = ReceiveSome(pair[from], buffer).value_or(0);
          absl::string_view rest(buffer.data(), size);
          while (!rest.empty() && !ends_) {
            rest.remove_prefix(
                SendSome(pair[1 - from], rest).value_or(rest.size()));
          }
        }
      }
      auto accepted = Accept(listener_);
      if (accepted.ok() && accepted->has_value()) {
        pairs.push_back({*std::move(*accepted), ConnectTo(there_)});
      }
    }
  }

  const TcpEndpoint there_;
  const OwnedFd listener_ = NewListener();
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// A member on each mesh, each as on a host of its own, so that no process is
// looked up. They introduce themselves, make a call, and then calls until an
// error, which they return; `strike` is called by each, with its rank, between
// the first call and the others, when all have made it.
std::vector<absl::Status> CallUntilAnError(
    Meshes& group, absl::Duration timeout,
    const std::function<void(int rank)>& strike) {
  const Call call = CallOf(Operation::kBarrier, 0, CallSite::Here());
  const int world_size = static_cast<int>(group.ranks.size());
  std::vector<absl::Status> statuses(group.ranks.size());
  std::atomic<int> through = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      MessageMember member(*group.ranks[static_cast<size_t>(rank)], rank,
                           world_size, timeout);
      RankIntroduction self = IntroduceSelf({});
      self.system = {static_cast<char>('a' + rank)};
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      status = member.Introduce(self);
      if (status.ok()) status = member.Enter(call);
      if (!status.ok()) status = absl::InternalError(status.message());
      ++through;
      while (through < world_size) std::this_thread::yield();
      strike(rank);
      while (status.ok() && group.ranks[static_cast<size_t>(rank)] != nullptr) {
        status = member.Enter(call);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// Rank 2 of three reaches the others through proxies.
TEST(TcpMemberTest, EveryRankNamesOneThatIsCutOffAtItsDeadline) {
  static constexpr absl::Duration kTimeout = absl::Seconds(1);
  Meshes group(3);
  Proxy first(group.endpoints[0]);
  Proxy second(group.endpoints[1]);
  OwnedFd listener = NewListener();
  const int port = PortOf(listener);
  group.ranks[2] = std::make_unique<TcpMesh>(
      RankClaim{2, 3, 1},
      std::vector<TcpEndpoint>{{kLoopback, first.port()},
                               {kLoopback, second.port()},
                               {kLoopback, port}},
      kSecret, std::move(listener), kSlotBytes);
  std::optional<Deadline> named;
  const auto statuses = CallUntilAnError(group, kTimeout, [&](int rank) {
    if (rank != 2) return;
    named.emplace(kTimeout + absl::Seconds(1));
    first.Stop();
    second.Stop();
  });
  EXPECT_FALSE(named->passed());
  const auto is_late = [](auto who) {
    return StatusIs(absl::StatusCode::kDeadlineExceeded,
                    AllOf(who, HasSubstr("did not come within 1s")));
  };
  EXPECT_THAT(statuses[0], is_late(StartsWith("rank 2")));
  EXPECT_EQ(statuses[1].message(), statuses[0].message());
  EXPECT_THAT(statuses[2],
              is_late(AnyOf(StartsWith("rank 0"), StartsWith("rank 1"))));
}

// Its connections end, and it has not said that it leaves.
TEST(TcpMemberTest, EveryRankNamesAProcessOfAnotherHostThatDies) {
  Meshes group(3);
  std::optional<Deadline> named;
  const auto statuses = CallUntilAnError(group, kLong, [&](int rank) {
    if (rank != 1) return;
    named.emplace(absl::Seconds(1));
    group.ranks[1].reset();
  });
  EXPECT_FALSE(named->passed());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(
        statuses[rank],
        StatusIs(absl::StatusCode::kUnavailable,
                 testing::ContainsRegex(
                     "^rank 1 .pid [0-9]+ on .*. died .seen by rank ")));
  }
}

// Groups of ranks on several hosts.

constexpr char kToken[] = "0123456789abcdef";

// The ranks of one host, as threads; all ranks of all hosts call fn. Results
// are lines.
std::string RunRanksOfHost(
    const std::vector<int>& ranks, int world_size, const std::string& host,
    const TcpRendezvousOptions& meeting, absl::Duration timeout,
    const std::function<absl::Status(Communicator&)>& fn) {
  std::vector<absl::Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto run = [&]() -> absl::Status {
        TcpRendezvousOptions mine = meeting;
        mine.rank = ranks[i];
        mine.world_size = world_size;
        LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> rendezvous,
                                  TcpRendezvous::Open(mine));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<Communicator> group,
            JoinTcpGroup(std::move(rendezvous),
                         {.host = host, .token = meeting.token},
                         {.timeout = timeout}));
        return fn(*group);
      };
      results[i] = run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string lines;
  for (const absl::Status& status : results) {
    absl::StrAppend(&lines, status.ok() ? "OK" : status.ToString(), "\n");
  }
  return lines;
}

// An all-reduce, `count` times, each of which must be right.
absl::Status Reduce(Communicator& group, int count) {
  for (int i = 0; i < count; ++i) {
    std::vector<float> data(300000, static_cast<float>(group.rank() + i));
    LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
    const int world_size = group.world_size();
    const auto want =
        static_cast<float>(world_size * i + world_size * (world_size - 1) / 2);
    if (std::ranges::any_of(data, [&](float x) { return x != want; })) {
      return absl::DataLossError("a wrong sum");
    }
  }
  return absl::OkStatus();
}

TEST(TcpGroupTest, RanksAtTwoAddressesOfLoopback) {
  auto port = Listen(Resolve(kLoopback, 0)->front());
  TcpRendezvousOptions meeting;
  meeting.port = PortOf(*port);
  port->Close();
  std::string other;
  std::thread host([&] {
    other = RunRanksOfHost({2, 3}, 4, "127.0.0.2", meeting, kLong,
                           [](Communicator& g) { return Reduce(g, 3); });
  });
  EXPECT_EQ(RunRanksOfHost({0, 1}, 4, kLoopback, meeting, kLong,
                           [](Communicator& g) { return Reduce(g, 3); }),
            "OK\nOK\n");
  host.join();
  EXPECT_EQ(other, "OK\nOK\n");
}

TEST(TcpGroupTest, AnAddressOfAnotherHostIsNamedToAll) {
  auto port = Listen(Resolve(kLoopback, 0)->front());
  TcpRendezvousOptions meeting;
  meeting.port = PortOf(*port);
  port->Close();
  const auto never = [](Communicator&) { return absl::OkStatus(); };
  std::string other;
  std::thread host([&] {
    other = RunRanksOfHost({1}, 2, "192.0.2.7", meeting, kLong, never);
  });
  const std::string here =
      RunRanksOfHost({0}, 2, kLoopback, meeting, kLong, never);
  host.join();
  EXPECT_THAT(here, HasSubstr("rank 1 cannot join: cannot listen at "
                              "192.0.2.7: not an address of this host"));
  EXPECT_EQ(here, other);
}

struct Cable {
  const char* name;
  Wire wire;
};

class TcpHostsTest : public testing::TestWithParam<Cable> {
 protected:
  // Two ranks on host 0, one on each other.
  static std::string RunHost(
      int host, int hosts, absl::Duration timeout,
      const std::function<absl::Status(Communicator&)>& fn) {
    TcpRendezvousOptions meeting;
    meeting.address = TestHosts::AddressOf(0);
    meeting.port = 29500;
    meeting.token = kToken;
    meeting.timeout = kLong;
    return RunRanksOfHost(host == 0 ? std::vector{0, 1} : std::vector{host + 1},
                          hosts + 1, TestHosts::AddressOf(host), meeting,
                          timeout, fn);
  }
};

TEST_P(TcpHostsTest, ReduceOverTheCable) {
  auto hosts = TestHosts::Start(
      2, GetParam().wire, [](int host, const std::function<void()>&) {
        return RunHost(host, 2, kLong,
                       [](Communicator& group) { return Reduce(group, 2); });
      });
  if (absl::IsUnavailable(hosts.status())) GTEST_SKIP() << hosts.status();
  ASSERT_THAT(hosts, IsOk());
  EXPECT_THAT((*hosts)->Collect(kLong),
              testing::ElementsAre("OK\nOK\n", "OK\n"));
}

// In the middle of all-reduces. Hosts 0 and 1 go on to hear each other.
TEST_P(TcpHostsTest, ACableThatIsPulledIsNamedByEveryRank) {
  static constexpr absl::Duration kTimeout = absl::Seconds(2);
  auto hosts = TestHosts::Start(
      3, GetParam().wire, [](int host, const std::function<void()>& event) {
        return RunHost(host, 3, kTimeout, [&](Communicator& group) {
          LOCKSTEP_RETURN_IF_ERROR(Reduce(group, 1));
          if (group.rank() == 0) event();
          return Reduce(group, 100000);
        });
      });
  if (absl::IsUnavailable(hosts.status())) GTEST_SKIP() << hosts.status();
  ASSERT_THAT(hosts, IsOk());
  ASSERT_TRUE((*hosts)->AwaitEvent(kLong));
  (*hosts)->CutOff(2);
  const Deadline named(kTimeout + absl::Seconds(2));
  const std::vector<std::string> results = (*hosts)->Collect(named.remaining());
  for (const int host : {0, 1}) {
    for (const absl::string_view line :
         absl::StrSplit(results[host], '\n', absl::SkipEmpty())) {
      EXPECT_THAT(std::string(line),
                  AllOf(StartsWith("DEADLINE_EXCEEDED: rank 3 "),
                        HasSubstr("did not come within 2s")));
    }
  }
  EXPECT_THAT(results[0], testing::Not(""));
  EXPECT_THAT(results[1], testing::Not(""));
  EXPECT_THAT(results[2], testing::ContainsRegex(
                              "^DEADLINE_EXCEEDED: rank [012] .*within 2s"));
}

INSTANTIATE_TEST_SUITE_P(
    Cables, TcpHostsTest,
    testing::Values(
        Cable{"Good", {}}, Cable{"Slow", {.delay = absl::Milliseconds(20)}},
        Cable{"Lossy", {.delay = absl::Milliseconds(1), .lost_of_1000 = 10}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep
