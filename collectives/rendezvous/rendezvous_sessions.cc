#include "collectives/rendezvous/rendezvous_sessions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/protocol.h"

namespace lockstep {
namespace {

constexpr FrameKinds kFromMembers(FrameKind::kPublish, FrameKind::kFailure,
                                  FrameKind::kGiveUp, FrameKind::kLeave);
// If more ranks are missing, a message names only this many.
constexpr size_t kMissingRanksNamed = 20;
constexpr FrameKinds kToMembers(FrameKind::kResult, FrameKind::kFailure);
constexpr FrameKinds kAnswersToJoin(FrameKind::kWelcome, FrameKind::kDenied);

// Returns "ranks 1, 2 and 30 more".
std::string NameRanks(const std::vector<size_t>& ranks) {
  const size_t named = std::min(ranks.size(), kMissingRanksNamed);
  const size_t more = ranks.size() - named;
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks.begin(),
                    ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

RendezvousServer::RendezvousServer(RendezvousEnd self)
    : self_(std::move(self)), members_(self_.claim.world_size) {}

RendezvousServer::SessionId RendezvousServer::AddRankZero() {
  const SessionId id = next_id_++;
  Enter(id, sessions_[id], self_.claim);
  return id;
}

RendezvousServer::SessionId RendezvousServer::AddStranger(absl::Duration now,
                                                          const Nonce& nonce) {
  if (strangers_ >= kMaxStrangers + static_cast<int>(members_.size())) {
    CloseOldestStranger();
  }
  const SessionId id = next_id_++;
  Session& session = sessions_[id];
  session.nonce = nonce;
  session.since = now;
  ++strangers_;
  Send(session, GreetingFrame(session.nonce));
  return id;
}

void RendezvousServer::Receive(SessionId id, absl::string_view bytes) {
  Session& session = sessions_.at(id);
  if (session.stage == Stage::kClosing) return;
  session.reader.Append(bytes);
  while (session.stage != Stage::kClosing) {
    const absl::StatusOr<std::optional<Frame>> frame = session.reader.Next();
    if (!frame.ok()) {
      if (session.stage == Stage::kMember) {
        Fail(self_.Error(absl::StatusCode::kDataLoss, Name(session.rank),
                         " sent ", frame.status().message()));
        Part(session, Presence::kDied);
      }
      Drop(session);
      return;
    }
    if (!frame->has_value()) return;
    Handle(id, session, **frame);
  }
}

void RendezvousServer::Disconnect(SessionId id) {
  Session& session = sessions_.at(id);
  if (session.stage == Stage::kMember) Part(session, Presence::kDied);
  Drop(session);
  sessions_.erase(id);
}

void RendezvousServer::Tick(absl::Duration now) {
  while (NextTick() <= now) CloseOldestStranger();
}

absl::Duration RendezvousServer::NextTick() {
  const Session* const oldest = OldestStranger();
  return oldest == nullptr ? absl::InfiniteDuration()
                           : oldest->since + kHandshakeTimeout;
}

bool RendezvousServer::CloseOldestStranger() {
  Session* const oldest = OldestStranger();
  if (oldest != nullptr) Drop(*oldest);
  return oldest != nullptr;
}

void RendezvousServer::Fail(const absl::Status& failure) {
  if (!failure_.ok()) return;
  failure_ = failure;
  for (auto& [id, session] : sessions_) {
    if (session.stage == Stage::kMember) Send(session, FailureFrame(failure_));
  }
}

absl::string_view RendezvousServer::Output(SessionId id) const {
  const Session& session = sessions_.at(id);
  if (session.output.empty()) return {};
  return absl::string_view(*session.output.front()).substr(session.sent);
}

void RendezvousServer::Sent(SessionId id, size_t size) {
  Session& session = sessions_.at(id);
  session.sent += size;
  if (session.sent == session.output.front()->size()) {
    session.output.pop_front();
    session.sent = 0;
  }
}

std::string RendezvousServer::AbsentRanks() const {
  std::vector<size_t> absent;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].presence == Presence::kAbsent) absent.push_back(rank);
  }
  return absent.empty() ? "" : NameRanks(absent);
}

bool RendezvousServer::ShouldClose(SessionId id) const {
  const Session& session = sessions_.at(id);
  return session.stage == Stage::kClosing && session.output.empty();
}

RendezvousServer::Session* RendezvousServer::OldestStranger() {
  for (auto& [id, session] : sessions_) {
    if (session.stage == Stage::kStranger) return &session;
  }
  return nullptr;
}

RendezvousServer::Member& RendezvousServer::MemberOf(const Session& session) {
  return members_[static_cast<size_t>(session.rank)];
}

std::string RendezvousServer::Name(int rank) const {
  return absl::StrCat("rank ", rank, " (pid ",
                      members_[static_cast<size_t>(rank)].pid, ")");
}

absl::Status RendezvousServer::GoneError(int rank) const {
  const bool left =
      members_[static_cast<size_t>(rank)].presence == Presence::kLeft;
  return self_.Error(absl::StatusCode::kUnavailable, Name(rank),
                     left ? " left" : " died");
}

void RendezvousServer::Handle(SessionId id, Session& session,
                              const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kJoin:
      return Join(id, session, frame);
    case FrameKind::kPublish:
      return Publish(session, frame);
    case FrameKind::kFailure:
      return Fail(DecodeFailure(frame));
    case FrameKind::kGiveUp:
      return GiveUp(session, frame);
    case FrameKind::kLeave:
      Part(session, Presence::kLeft);
      return Drop(session);
    default:  // The reader rejects all other kinds.
      return Drop(session);
  }
}

void RendezvousServer::Join(SessionId id, Session& session,
                            const Frame& frame) {
  --strangers_;
  session.stage = Stage::kClosing;  // Unless Admit makes it a member.
  if (!JoinKnowsToken(self_.token, session.nonce, frame)) {
    return Send(session, {FrameKind::kDenied, 0, 0, ""});
  }
  const Frame welcome =
      WelcomeFrame(self_.token, session.nonce, frame, self_.claim.pid);
  const absl::Status refusal = Admit(id, session, ClaimOfJoin(frame));
  // The welcome and the refusal are sent in one piece. A rank that has read
  // only the welcome would answer it, and closing a connection with unread
  // bytes discards data that is still on its way.
  std::string answer = EncodeFrame(welcome);
  if (!refusal.ok()) answer += EncodeFrame(FailureFrame(refusal));
  session.output.push_back(
      std::make_shared<const std::string>(std::move(answer)));
}

absl::Status RendezvousServer::Admit(SessionId id, Session& session,
                                     const RankClaim& claim) {
  const uint32_t world_size = self_.claim.world_size;
  if (claim.world_size != world_size) {
    Fail(self_.Error(absl::StatusCode::kInvalidArgument,
                     "ranks disagree on the world size: rank ", claim.rank,
                     " (pid ", claim.pid, ") says ", claim.world_size, ", ",
                     Name(0), " says ", world_size));
    return failure_;
  }
  if (claim.rank < 0 || claim.rank >= static_cast<int64_t>(world_size)) {
    return self_.Error(absl::StatusCode::kInvalidArgument, "rank ", claim.rank,
                       " is outside [0, ", world_size, ")");
  }
  Member& member = members_[static_cast<size_t>(claim.rank)];
  if (member.presence == Presence::kPresent) {
    return self_.Error(absl::StatusCode::kAlreadyExists, Name(claim.rank),
                       " has joined already");
  }
  if (member.presence != Presence::kAbsent) Fail(GoneError(claim.rank));
  if (!failure_.ok()) return failure_;
  Enter(id, session, claim);
  return absl::OkStatus();
}

void RendezvousServer::Enter(SessionId id, Session& session,
                             const RankClaim& claim) {
  session.stage = Stage::kMember;
  session.rank = claim.rank;
  session.reader.Expect(kFromMembers);
  Member& member = MemberOf(session);
  member.presence = Presence::kPresent;
  member.pid = claim.pid;
  member.session = id;
}

void RendezvousServer::Publish(const Session& session, const Frame& frame) {
  if (!failure_.ok()) return;  // This rank has been sent the failure.
  Member& member = MemberOf(session);
  if (frame.number != round_ || member.blob.has_value()) {
    return Fail(self_.Error(absl::StatusCode::kDataLoss, Name(session.rank),
                            " published in round ", frame.number,
                            " when it was round ", round_));
  }
  if (gone_rank_ >= 0) return Fail(GoneError(gone_rank_));
  member.blob = frame.payload;
  ++published_;
  if (published_ == static_cast<int>(members_.size())) EndRound();
}

void RendezvousServer::EndRound() {
  std::string results;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    results +=
        EncodeFrame({FrameKind::kResult, static_cast<int32_t>(rank), round_,
                     *std::exchange(members_[rank].blob, std::nullopt)});
  }
  const auto shared = std::make_shared<const std::string>(std::move(results));
  for (const Member& member : members_) {
    sessions_.at(member.session).output.push_back(shared);
  }
  ++round_;
  published_ = 0;
}

void RendezvousServer::GiveUp(const Session& session, const Frame& frame) {
  // The round may have ended while the frame was on its way.
  if (!MemberOf(session).blob.has_value()) return;
  std::vector<size_t> missing;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].blob.has_value()) missing.push_back(rank);
  }
  Fail(self_.Error(absl::StatusCode::kDeadlineExceeded, NameRanks(missing),
                   " of ", members_.size(), " did not come within ",
                   absl::FormatDuration(absl::Milliseconds(frame.number))));
}

void RendezvousServer::Part(const Session& session, Presence presence) {
  MemberOf(session).presence = presence;
  if (gone_rank_ < 0) gone_rank_ = session.rank;
  if (published_ > 0) Fail(GoneError(session.rank));
}

void RendezvousServer::Send(Session& session, const Frame& frame) {
  session.output.push_back(
      std::make_shared<const std::string>(EncodeFrame(frame)));
}

void RendezvousServer::Drop(Session& session) {
  if (session.stage == Stage::kStranger) --strangers_;
  session.stage = Stage::kClosing;
  session.output.clear();
  session.sent = 0;
}

RendezvousClient::RendezvousClient(RendezvousEnd self, const Nonce& nonce)
    : self_(std::move(self)),
      nonce_(nonce),
      reader_(FrameKinds(FrameKind::kGreeting)) {}

RendezvousClient RendezvousClient::ForRankZero(RendezvousEnd self) {
  RendezvousClient client(std::move(self), Nonce{});
  client.joined_ = true;
  client.server_pid_ = client.self_.claim.pid;
  client.reader_.Expect(kToMembers);
  return client;
}

std::string RendezvousClient::ServerName() const {
  return joined_ ? absl::StrCat("rank 0 (pid ", server_pid_, ")") : "rank 0";
}

void RendezvousClient::Publish(uint32_t round, absl::string_view blob) {
  round_ = round;
  results_.clear();
  // A failure that arrived between two rounds ends the next round.
  if (outcome_.has_value() && outcome_->ok()) outcome_.reset();
  Ask({FrameKind::kPublish, 0, round, std::string(blob)});
}

void RendezvousClient::Fail(const absl::Status& failure) {
  if (outcome_.has_value() && outcome_->ok()) outcome_.reset();
  Ask(FailureFrame(failure));
}

void RendezvousClient::GiveUp(absl::Duration timeout) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const int64_t milliseconds =
      std::min(kMost, absl::ToInt64Milliseconds(timeout));
  Ask({FrameKind::kGiveUp, 0, static_cast<uint32_t>(milliseconds), ""});
}

void RendezvousClient::Leave() { Ask({FrameKind::kLeave, 0, 0, ""}); }

void RendezvousClient::Receive(absl::string_view bytes) {
  reader_.Append(bytes);
  while (!outcome_.has_value() || outcome_->ok()) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (!frame.ok()) {
      outcome_ = self_.Error(frame.status().code(),
                             "the program there is not this run's rank 0: "
                             "it sent ",
                             frame.status().message());
      return;
    }
    if (!frame->has_value()) return;
    Handle(**frame);
  }
}

absl::string_view RendezvousClient::Output() const {
  return absl::string_view(output_).substr(sent_);
}

void RendezvousClient::Sent(size_t size) {
  sent_ += size;
  if (sent_ < output_.size()) return;
  output_.clear();
  sent_ = 0;
}

void RendezvousClient::Handle(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kGreeting:
      server_nonce_ = NonceOfGreeting(frame);
      join_ = JoinFrame(self_.token, server_nonce_, nonce_, self_.claim);
      output_ += EncodeFrame(join_);
      return reader_.Expect(kAnswersToJoin);
    case FrameKind::kWelcome:
      return TakeWelcome(frame);
    case FrameKind::kDenied:
      outcome_ = self_.Error(absl::StatusCode::kUnauthenticated, "rank ",
                             self_.claim.rank,
                             " was refused: its token is not rank 0's");
      return;
    case FrameKind::kResult:
      return TakeResult(frame);
    default:  // The reader lets only kFailure through here.
      outcome_ = DecodeFailure(frame);
  }
}

void RendezvousClient::TakeWelcome(const Frame& frame) {
  if (!WelcomeKnowsToken(self_.token, server_nonce_, join_, frame)) {
    outcome_ = self_.Error(absl::StatusCode::kUnauthenticated,
                           "the program there does not know the token");
    return;
  }
  joined_ = true;
  server_pid_ = frame.number;
  reader_.Expect(kToMembers);
  output_ += std::exchange(waiting_, "");
}

void RendezvousClient::TakeResult(const Frame& frame) {
  // Also false between rounds, since there is an outcome then.
  const bool awaited = !outcome_.has_value() && frame.number == round_ &&
                       frame.rank == static_cast<int64_t>(results_.size());
  if (!awaited) {
    outcome_ = self_.Error(absl::StatusCode::kDataLoss, ServerName(),
                           " sent a result out of turn");
    return;
  }
  results_.push_back(frame.payload);
  if (results_.size() == self_.claim.world_size) {
    outcome_ = std::exchange(results_, {});
  }
}

void RendezvousClient::Ask(const Frame& frame) {
  (joined_ ? output_ : waiting_) += EncodeFrame(frame);
}

}  // namespace lockstep
