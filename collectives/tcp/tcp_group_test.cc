// Tests of groups over TCP: which connections are accepted, ranks on several
// hosts, hosts that are cut off. conformance/collectives checks the results of
// each call, and the errors of the others when a rank is killed or stopped.
#include "collectives/tcp/tcp_group.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
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
#include "collectives/rendezvous/tcp_rendezvous.h"
#include "collectives/tcp/tcp_mesh.h"
#include "collectives/tcp/testing/hosts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kSecret[] = "secret";
constexpr int64_t kSlotBytes = 1024;
// Longer than any operation of these tests takes on a busy machine.
constexpr absl::Duration kLong = absl::Seconds(20);

OwnedFd NewListener() { return *Listen(Resolve(kLoopback, 0)->front()); }

// The meshes of all ranks of a group, in this process.
struct Meshes {
  explicit Meshes(int world_size) {
    std::vector<OwnedFd> listeners;
    for (int rank = 0; rank < world_size; ++rank) {
      listeners.push_back(NewListener());
      endpoints.push_back({kLoopback, PortOf(listeners.back())});
    }
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.push_back(std::make_unique<TcpMesh>(
          RankClaim{rank, static_cast<uint32_t>(world_size), 1}, endpoints,
          kSecret, std::move(listeners[static_cast<size_t>(rank)]),
          kSlotBytes));
    }
  }

  std::vector<TcpEndpoint> endpoints;
  std::vector<std::unique_ptr<TcpMesh>> ranks;
};

// Returns rank 1 of two. Its rank 0 is the owner of `listener`.
TcpMesh NewRank1(const OwnedFd& listener) {
  return TcpMesh({1, 2, 1}, {{kLoopback, PortOf(listener)}, {}}, kSecret,
                 OwnedFd(), kSlotBytes);
}

// Lets the mesh work until `done` returns true. Returns false at the deadline.
bool Work(TcpMesh& mesh, absl::FunctionRef<bool()> done,
          std::vector<std::pair<int, uint64_t>>* heard = nullptr,
          absl::Duration limit = kLong) {
  const Deadline deadline(limit);
  while (!done()) {
    if (deadline.passed()) return false;
    mesh.Idle({}, /*may_spin=*/false, std::chrono::milliseconds(1));
    mesh.Poll([&](int peer, const ControlMessage& message) {
      if (heard != nullptr) heard->push_back({peer, message.number});
    });
  }
  return true;
}

// Returns whether two ranks receive each other's messages. Lets both work here.
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

// Returns all bytes that arrive on a connection until its end, while the mesh
// works. The end must come before the mesh would close an idle connection.
std::string ReadUntilEnd(const OwnedFd& socket, TcpMesh& mesh) {
  std::string bytes;
  const auto has_ended = [&] {
    std::array<char, 256> buffer;
    const std::optional<size_t> size = ReceiveSome(socket, buffer);
    if (size.has_value()) bytes.append(buffer.data(), *size);
    return !size.has_value();
  };
  EXPECT_TRUE(Work(mesh, has_ended, nullptr, kHandshakeTimeout * 0.8));
  return bytes;
}

// Returns the join frame of a stranger that has read the greeting, with this
// claim and secret.
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
  // Half-open connections: they send nothing, or only a part, and do not hang
  // up. There are more than the mesh keeps at a time, so it must close the
  // first ones.
  std::vector<OwnedFd> silent;
  for (int i = 0; i < kMaxStrangers + 10; ++i) {
    silent.push_back(ConnectTo(group.endpoints[0]));
    if (i % 2 == 0) SendSome(silent.back(), "LSR");
  }
  mesh.Poll([](int, const ControlMessage&) {});
  std::array<char, 1> byte;
  EXPECT_EQ(ReceiveSome(silent.back(), byte), 0);  // Some got no greeting.
  for (const auto& [name, bytes] : strangers) {
    SCOPED_TRACE(name);
    const OwnedFd socket = ConnectTo(group.endpoints[0]);
    SendSome(socket, bytes(socket, mesh));
    // The answer is a greeting, at most the message that the token is wrong,
    // and the end.
    const std::string answer = ReadUntilEnd(socket, mesh);
    EXPECT_THAT(answer.size(), testing::Lt(100));
    EXPECT_EQ(mesh.Lost(1), "");
  }
  EXPECT_TRUE(Connect(mesh, *group.ranks[1], 0, 1));
  EXPECT_THAT(mesh.error(), IsOk());
  // The mesh no longer listens, and the waiting connections are closed.
  EXPECT_THAT(lockstep::Connect(
                  Resolve(kLoopback, group.endpoints[0].port)->front(), kLong)
                  .status(),
              testing::Not(IsOk()));
  ReadUntilEnd(silent.back(), mesh);
}

// The control of the test above: the same bytes with the right claim and
// secret.
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
  EXPECT_EQ(ReadUntilEnd(second, mesh), "");
  EXPECT_EQ(mesh.Lost(1), "");
}

// Returns the bytes of a message, in the format of tcp_mesh.cc.
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
      {"half a message", Message(4, 100, 0, "ab"), "died"},
      {"pieces in order", Message(100, 3, 0, "abc") + Message(101, 0, 0),
       "died"},
      {"a negative kind", Message(-1, 0, 0), "sent bytes that"},
      {"a kind between", Message(6, 0, 0), "sent bytes that"},
      {"a kind beyond", Message(102, 0, 0), "sent bytes that"},
      {"a short greeting", Message(0, 1, 0, "a"), "sent bytes that"},
      {"a short call", Message(1, sizeof(Call) - 1, 0), "sent bytes that"},
      {"a call of two that is none", Message(2, 0, 0), "sent bytes that"},
      {"awake, with a body", Message(3, 1, 0, "a"), "sent bytes that"},
      {"a long body", Message(4, ControlMessage::kMaxBody + 1, 0),
       "sent bytes that"},
      {"a credit with a body", Message(101, 1, 0, "a"), "sent bytes that"},
      {"an empty piece", Message(100, 0, 0), "sent bytes that"},
      {"a piece larger than a slot", Message(100, kSlotBytes + 1, 0),
       "sent bytes that"},
      {"frees what was not sent", Message(101, 0, 1), "sent bytes that"},
      {"garbage", std::string(5000, '\xff'), "sent bytes that"},
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
      {"SSH-2.0-OpenSSH_9.2\r\n", "does not listen at its address"},
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
    TcpMesh mesh = NewRank1(listener);
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
  // The rank is gone: it listened when it published its address.
  Meshes group(2);
  group.ranks[0].reset();
  EXPECT_TRUE(
      Work(*group.ranks[1], [&] { return !group.ranks[1]->Lost(0).empty(); }));
  EXPECT_THAT(group.ranks[1]->Lost(0), StartsWith("is gone"));
}

TEST(TcpMeshTest, WhoWaitsToBeLetInSleeps) {
  const OwnedFd listener = NewListener();
  TcpMesh mesh = NewRank1(listener);
  mesh.Post(ControlMessage(), std::array{0});  // It cannot be sent yet.
  int looks = 0;
  Work(mesh, [&] { return ++looks > 5; });
  const Deadline since(kLong);
  mesh.Idle({}, /*may_spin=*/false, std::chrono::milliseconds(50));
  EXPECT_GE(since.elapsed(), absl::Milliseconds(40));
}

// The messages are more than the kernel takes. Rank 0 does not read until rank
// 2 has all of them.
TEST(TcpMeshTest, LastWordsReachARankBehindOneThatIsSilent) {
  constexpr size_t kMessages = 20000;
  Meshes group(3);
  TcpMesh& leaver = *group.ranks[1];
  TcpMesh& reader = *group.ranks[2];
  ASSERT_TRUE(Connect(*group.ranks[0], leaver, 0, 1));
  ASSERT_TRUE(Connect(leaver, reader, 1, 2));
  ControlMessage message;
  message.kind = ControlMessage::Kind::kFailure;
  message.size = ControlMessage::kMaxBody;
  message.body = {};
  for (size_t i = 0; i < kMessages; ++i) {
    leaver.Post(message, std::array{0, 2});
  }
  std::vector<std::pair<int, uint64_t>> heard;
  std::thread other([&] {
    Work(
        reader, [&] { return heard.size() == kMessages; }, &heard);
    group.ranks[0].reset();
  });
  leaver.Leave(kLong / 2);
  other.join();
  EXPECT_EQ(heard.size(), kMessages);
}

// Runs a member on each mesh, each as on a host of its own, so that no process
// is looked up. Once all know each other, each member calls `body` until an
// error. Returns the errors.
std::vector<absl::Status> CallUntilAnError(
    Meshes& group, absl::Duration timeout,
    const std::function<absl::Status(MessageMember&)>& body) {
  const int world_size = static_cast<int>(group.ranks.size());
  std::vector<absl::Status> statuses(group.ranks.size());
  std::latch met(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpMesh& mesh = *group.ranks[static_cast<size_t>(rank)];
      MessageMember meeting(mesh, rank, world_size, kLong);
      RankIntroduction self = IntroduceSelf({});
      self.system = {static_cast<char>('a' + rank)};
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      status = meeting.Introduce(self);
      met.arrive_and_wait();
      // Rank 0 times out first.
      MessageMember member(mesh, rank, world_size, (rank + 1) * timeout);
      member.SetIntroductions(meeting.introductions());
      while (status.ok()) status = body(member);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status EnterBarrier(MessageMember& member) {
  return member.Enter(CallOf(Operation::kBarrier, 0, CallSite::Here()));
}

// Receives from the next rank, which sends nothing.
absl::Status ReceiveFromNext(MessageMember& member) {
  Call call = CallOf(Operation::kReceive, 1, CallSite::Here());
  call.peer = (member.rank() + 1) % member.world_size();
  LOCKSTEP_RETURN_IF_ERROR(member.EnterWithPartner(call));
  return member.WaitFor(-1, call.peer, [] { return false; });
}

// Rank 1 waits in a Split, for a rank of the new group.
absl::Status JoinSubgroup(MessageMember& member) {
  if (member.rank() == 0) return EnterBarrier(member);
  Meshes pair(2);
  MessageMember joins(*pair.ranks[0], 0, 2, kLong);
  return joins.Introduce(IntroduceSelf({}), &member);
}

// Rank 2 is silent or dies. In the first case rank 1 waits for it, and rank 0
// waits for rank 1, which sends kAwake. In the second case its connections end
// without a message.
TEST(TcpMemberTest, EveryRankNamesTheOneThatIsSilentOrDies) {
  const struct {
    absl::Status (*wait)(MessageMember&);
    absl::Duration timeout;
    const char* said;
  } cases[] = {{EnterBarrier, absl::Seconds(1), "did not come within 1s"},
               {ReceiveFromNext, absl::Seconds(1), "did not come within 1s"},
               {JoinSubgroup, absl::Seconds(1), "did not come within 1s"},
               {EnterBarrier, kLong, "died"}};
  for (const auto& test : cases) {
    Meshes group(3);
    std::latch others(2);
    const auto statuses =
        CallUntilAnError(group, test.timeout, [&](MessageMember& member) {
          if (member.rank() == 2) {
            if (test.timeout == kLong) group.ranks[2].reset();
            others.wait();
            return absl::CancelledError();
          }
          const absl::Status status = test.wait(member);
          if (!status.ok()) others.count_down();
          return status;
        });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(std::string(statuses[rank].message()),
                  MatchesRegex(absl::StrCat("rank 2 .pid [0-9]+ on .*. ",
                                            test.said, " .seen by rank .*")));
    }
  }
}

// Tests of groups of ranks on several hosts.

constexpr char kToken[] = "0123456789abcdef";

using Open =
    std::function<absl::StatusOr<std::unique_ptr<Rendezvous>>(int rank)>;
using Body = std::function<absl::Status(Communicator&)>;

// Makes `count` all-reduces and checks each result.
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

// A rendezvous of one rank, which keeps the bytes that the rank publishes.
class Alone : public Rendezvous {
 public:
  explicit Alone(std::string& published) : published_(published) {}
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    return std::vector{published_ = std::string(blob)};
  }

 private:
  std::string& published_;
};

TEST(TcpGroupTest, PublishesTheNumberOfItsHostOrWhyItCannotListen) {
  const std::pair<const char*, testing::Matcher<std::string>> cases[] = {
      {"127.0.0.2", HasSubstr("127.0.0.2")},
      {"localhost", AnyOf(HasSubstr("127.0.0.1"), HasSubstr("::1"))},
      {"192.0.2.7", HasSubstr("cannot listen at 192.0.2.7: not an address of "
                              "this host")}};
  for (const auto& [host, said] : cases) {
    std::string published;
    JoinTcpGroup(std::make_unique<Alone>(published),
                 {.host = host, .token = ""})
        .IgnoreError();
    EXPECT_THAT(published, said);
  }
}

// Calls fn as two ranks on host 0 and as one rank on each other host. Ranks are
// threads. Returns their results, one line each.
std::string RunHost(int host, int hosts, absl::Duration timeout,
                    const std::function<absl::Status(Communicator&)>& fn) {
  const auto run = [&](int rank) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::unique_ptr<Rendezvous> rendezvous,
        TcpRendezvous::Open({.address = TestHosts::AddressOf(0),
                             .port = 29500,
                             .token = kToken,
                             .listen_address = "",
                             .rank = rank,
                             .world_size = hosts + 1,
                             .timeout = kLong}));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Communicator> group,
        JoinTcpGroup(std::move(rendezvous),
                     {.host = TestHosts::AddressOf(host), .token = kToken},
                     {.timeout = timeout}));
    return fn(*group);
  };
  std::string lines[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < (host == 0 ? 2 : 1); ++i) {
    threads.emplace_back(
        [&, i] { lines[i] = run(host == 0 ? i : host + 1).ToString() + "\n"; });
  }
  for (std::thread& thread : threads) thread.join();
  return lines[0] + lines[1];
}

// Hosts 0 and 1 still reach each other after host 2's cable is pulled, in the
// middle of all-reduces. The timeout also applies to joining. It is longer than
// the delay of a few losses.
TEST(TcpHostsTest, ReduceOverACableUntilItIsPulled) {
  const struct {
    Wire wire;
    bool is_pulled;
  } cases[] = {
      {{.delay = absl::Milliseconds(20)}, false},
      {{.delay = absl::Milliseconds(1), .lost_of_1000 = 10}, false},
      {{.delay = absl::Milliseconds(10), .lost_of_1000 = 10}, true},
  };
  for (const auto& test : cases) {
    const absl::Duration timeout = test.is_pulled ? absl::Seconds(4) : kLong;
    auto hosts = TestHosts::Start(
        3, test.wire, [&](int host, const std::function<void()>& event) {
          return RunHost(host, 3, timeout, [&](Communicator& group) {
            LOCKSTEP_RETURN_IF_ERROR(Reduce(group, 1));
            if (group.rank() == 0) event();
            return Reduce(group, test.is_pulled ? 100000 : 1);
          });
        });
    if (absl::IsUnavailable(hosts.status())) GTEST_SKIP() << hosts.status();
    ASSERT_THAT(hosts, IsOk());
    ASSERT_TRUE((*hosts)->AwaitEvent(kLong));
    if (test.is_pulled) (*hosts)->CutOff(2);
    const auto line = [&](const char* ranks) {
      return test.is_pulled ? absl::StrCat("DEADLINE_EXCEEDED: rank ", ranks,
                                           " .*within 4s.*\n")
                            : "OK\n";
    };
    EXPECT_THAT((*hosts)->Collect(timeout + absl::Seconds(10)),
                testing::ElementsAre(MatchesRegex(line("3") + line("3")),
                                     MatchesRegex(line("3")),
                                     MatchesRegex(line("[012]"))));
  }
}

}  // namespace
}  // namespace lockstep
