#include "collectives/rendezvous/rendezvous_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous_sessions.h"

namespace lockstep {
namespace {

constexpr uint32_t kWorldSize = 2;

void Feed(RendezvousClient& client, absl::string_view bytes, size_t piece) {
  for (size_t at = 0; at < bytes.size(); at += piece) {
    client.Receive(bytes.substr(at, piece));
  }
}

RendezvousClient WaitingRank() {
  RendezvousClient client =
      RendezvousClient::ForRankZero({"rendezvous", {0, kWorldSize, 1}, ""});
  client.Publish(1, "mine");
  return client;
}

std::string CheckStranger(absl::string_view bytes, size_t piece) {
  RendezvousClient client({"rendezvous", {1, kWorldSize, 1}, "the token"},
                          Nonce{});
  client.Publish(1, "what is published");
  Feed(client, bytes, piece);
  if (client.joined()) return "joined a server that does not know the token";
  if (client.outcome().has_value() && client.outcome()->ok()) {
    return "met ranks without having joined";
  }
  if (client.Output().size() > kFrameHeaderBytes + kJoinBytes) {
    return "sent more than a request to join";
  }
  return "";
}

// Returns the bytes of the results of round 1, with which `bytes` should begin.
std::string EncodeResults(const std::vector<std::string>& blobs) {
  std::string bytes;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    bytes += EncodeFrame(
        {FrameKind::kResult, static_cast<int32_t>(rank), 1, blobs[rank]});
  }
  return bytes;
}

constexpr absl::string_view kToken = "the token";
constexpr FrameKinds kFromServer(FrameKind::kGreeting, FrameKind::kWelcome,
                                 FrameKind::kDenied, FrameKind::kResult,
                                 FrameKind::kFailure);
constexpr RendezvousServer::SessionId kNobody = -1;

// The state of one end of a connection, as that end sees it.
struct SessionModel {
  FrameReader reader{kFromServer};
  Nonce nonce = {};  // The server's, once received.
  bool greeted = false;
  bool reads = true;
  bool knows_token = false;  // Has asked to join with the token.
  bool joined = false;
  int rank = -1;
  uint32_t round = 1;     // The round of the next expected result.
  int32_t next_rank = 0;  // The rank of the next expected result.
};

class ServerCheck {
 public:
  using SessionId = RendezvousServer::SessionId;

  ServerCheck(std::span<const uint8_t> input,
              const std::function<void(bool, std::string&)>& tamper)
      : input_(input), tamper_(tamper) {
    SessionModel zero;
    zero.greeted = zero.knows_token = zero.joined = true;
    zero.rank = 0;
    peers_[server_.AddRankZero()] = std::move(zero);
  }

  ServerCheckResult Run() {
    while (!input_.empty() && result_.wrong.empty()) {
      Step();
      CheckSilence();
      Collect();
    }
    return std::move(result_);
  }

 private:
  uint8_t Take() {
    if (input_.empty()) return 0;
    const uint8_t byte = input_.front();
    input_ = input_.subspan(1);
    return byte;
  }

  std::string TakeBytes(size_t size) {
    const auto bytes = input_.first(std::min(size, input_.size()));
    input_ = input_.subspan(bytes.size());
    return std::string(bytes.begin(), bytes.end());
  }

  void Step() {
    const auto step = static_cast<ServerStep>(Take() % kServerSteps);
    may_reach_others_ = false;
    acting_ = kNobody;
    if (step == ServerStep::kConnect) {
      if (++nonce_[0] == 0) ++nonce_[1];
      acting_ = server_.AddStranger(now_, nonce_);
      peers_[acting_] = SessionModel();
      return;
    }
    if (step == ServerStep::kWait) {
      now_ += absl::Milliseconds(100) * Take();
      server_.Tick(now_);
      return;
    }
    if (peers_.empty()) return;
    const auto it = std::next(peers_.begin(), Take() % peers_.size());
    acting_ = it->first;
    may_reach_others_ = it->second.knows_token;
    Act(step, it->first, it->second);
  }

  void Act(ServerStep step, SessionId id, SessionModel& peer) {
    switch (step) {
      case ServerStep::kSend:
        return SendRaw(id, peer);
      case ServerStep::kJoin:
      case ServerStep::kJoinAsOther:
        return Join(id, peer, step == ServerStep::kJoin);
      case ServerStep::kPublish:
        return Publish(id, peer);
      case ServerStep::kGiveUp:
        return Send(id, {FrameKind::kGiveUp, 0, Take(), ""});
      case ServerStep::kFail:
        return Send(id, {FrameKind::kFailure, 0, Take(), "a failure"});
      case ServerStep::kLeave:
        return Send(id, {FrameKind::kLeave, 0, 0, ""});
      case ServerStep::kDisconnect:
        return Disconnect(id);
      default:
        peer.reads = false;
    }
  }

  void SendRaw(SessionId id, SessionModel& peer) {
    const std::string bytes = TakeBytes(Take());
    // If a rank sends raw bytes, they may form a frame that the model does not
    // track.
    if (peer.knows_token) modelled_ = false;
    server_.Receive(id, bytes);
  }

  void Join(SessionId id, SessionModel& peer, bool knows_token) {
    const auto rank = static_cast<int32_t>(Take());
    const uint32_t world_size = kServerCheckWorldSize + Take();
    if (knows_token && peer.greeted && !peer.knows_token) {
      peer.knows_token = may_reach_others_ = true;
      peer.rank = rank;
    }
    Send(id, JoinFrame(knows_token ? kToken : "another token", peer.nonce,
                       Nonce{}, {rank, world_size, 7}));
  }

  void Publish(SessionId id, SessionModel& peer) {
    const uint32_t round = Take();
    // Blobs differ between rounds and between ranks.
    const std::string blob =
        absl::StrCat(peer.rank, ":", round, ":", std::string(Take(), 'b'));
    if (peer.knows_token) published_.insert({round, peer.rank, blob});
    Send(id, {FrameKind::kPublish, 0, round, blob});
  }

  void Send(SessionId id, const Frame& frame) {
    const std::string bytes = EncodeFrame(frame);
    if (Take() % 2 == 0) return server_.Receive(id, bytes);
    for (const char& byte : bytes) server_.Receive(id, {&byte, 1});
  }

  void Disconnect(SessionId id) {
    server_.Disconnect(id);
    peers_.erase(id);
  }

  // Checks that a stranger's step makes the server send nothing to other
  // sessions. All output of earlier steps has been taken already.
  void CheckSilence() {
    if (may_reach_others_) return;
    for (const auto& [id, peer] : peers_) {
      if (id != acting_ && peer.reads && !server_.Output(id).empty()) {
        return Wrong("a stranger made the server send to another session");
      }
    }
  }

  // Takes the server's output, and disconnects sessions that it wants to close.
  void Collect() {
    int strangers = 0;
    for (auto it = peers_.begin(); it != peers_.end();) {
      const SessionId id = it->first;
      SessionModel& peer = it->second;
      ++it;
      if (peer.reads) Drain(id, peer);
      if (server_.ShouldClose(id)) {
        Disconnect(id);
        continue;
      }
      // A session that does not read may keep its denial from being sent. With
      // real sockets, so few bytes can always be sent.
      strangers += peer.knows_token || !peer.reads ? 0 : 1;
    }
    if (strangers > kMaxStrangers + kServerCheckWorldSize) {
      Wrong(absl::StrCat(strangers, " strangers at one time"));
    }
  }

  void Drain(SessionId id, SessionModel& peer) {
    std::string sent;
    while (true) {
      const absl::string_view output = server_.Output(id);
      if (output.empty()) break;
      sent.append(output.data(), output.size());
      server_.Sent(id, output.size());
    }
    if (tamper_ && !sent.empty()) tamper_(peer.joined, sent);
    peer.reader.Append(sent);
    while (result_.wrong.empty()) {
      const absl::StatusOr<std::optional<Frame>> frame = peer.reader.Next();
      if (!frame.ok()) {
        return Wrong(
            absl::StrCat("the server sent ", frame.status().message()));
      }
      if (!frame->has_value()) return;
      Handle(peer, **frame);
    }
  }

  void Handle(SessionModel& peer, const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::kGreeting:
        if (std::exchange(peer.greeted, true)) Wrong("a second greeting");
        peer.nonce = NonceOfGreeting(frame);
        return;
      case FrameKind::kDenied:
        ++result_.denied;
        return;
      case FrameKind::kWelcome:
        if (!peer.knows_token) Wrong("a stranger was let in");
        if (std::exchange(peer.joined, true)) Wrong("a second welcome");
        ++result_.joined;
        return;
      case FrameKind::kResult:
        return HandleResult(peer, frame);
      default:
        ++result_.failures;
        if (!peer.joined) Wrong("a stranger was told of a failure");
    }
  }

  void HandleResult(SessionModel& peer, const Frame& frame) {
    ++result_.results;
    if (!peer.joined) return Wrong("a stranger was sent a result");
    if (frame.number != peer.round || frame.rank != peer.next_rank) {
      return Wrong("a result out of turn");
    }
    if (modelled_ &&
        !published_.contains({frame.number, frame.rank, frame.payload})) {
      return Wrong("a result that is not what the rank published");
    }
    peer.next_rank = (peer.next_rank + 1) % kServerCheckWorldSize;
    if (peer.next_rank == 0) ++peer.round;
  }

  void Wrong(std::string what) {
    if (result_.wrong.empty()) result_.wrong = std::move(what);
  }

  std::span<const uint8_t> input_;
  std::function<void(bool, std::string&)> tamper_;
  RendezvousServer server_{
      {"rendezvous", {0, kServerCheckWorldSize, 1}, std::string(kToken)}};
  Nonce nonce_ = {};
  std::map<SessionId, SessionModel> peers_;
  absl::Duration now_;
  // Round, rank and blob of every publish, including rejected ones.
  std::set<std::tuple<uint32_t, int32_t, std::string>> published_;
  // Whether published_ holds everything that was published.
  bool modelled_ = true;
  SessionId acting_ = kNobody;     // The session that acts in this step.
  bool may_reach_others_ = false;  // Whether acting_ knows the token.
  ServerCheckResult result_;
};

}  // namespace

ClientCheckResult CheckClient(std::span<const uint8_t> input) {
  ClientCheckResult result;
  if (input.empty()) return result;
  const size_t piece = std::max<size_t>(input.front(), 1);
  const std::string bytes(input.begin() + 1, input.end());
  result.wrong = CheckStranger(bytes, piece);

  RendezvousClient client = WaitingRank();
  Feed(client, bytes, piece);
  RendezvousClient at_once = WaitingRank();
  at_once.Receive(bytes);
  if (client.outcome().has_value() != at_once.outcome().has_value()) {
    result.wrong = "the outcome depends on the sizes of the pieces";
  }
  if (!client.outcome().has_value()) return result;
  const absl::StatusOr<std::vector<std::string>>& outcome = *client.outcome();
  result.finished = outcome.ok();
  result.failed = !outcome.ok();
  if (outcome.status() != at_once.outcome()->status()) {
    result.wrong = "the outcome depends on the sizes of the pieces";
  }
  if (outcome.ok() && (outcome->size() != kWorldSize ||
                       bytes.rfind(EncodeResults(*outcome), 0) != 0)) {
    result.wrong = "finished a round with other blobs than were sent";
  }
  return result;
}

ServerCheckResult CheckServer(
    std::span<const uint8_t> input,
    const std::function<void(bool joined, std::string& sent)>& tamper) {
  return ServerCheck(input, tamper).Run();
}

}  // namespace lockstep
