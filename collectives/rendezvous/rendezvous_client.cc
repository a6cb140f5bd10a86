#include "collectives/rendezvous/rendezvous_client.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/frame.h"
#include "collectives/rendezvous/handshake.h"

namespace lockstep {
namespace {

constexpr FrameKinds kToMembers(FrameKind::kResult, FrameKind::kFailure);
constexpr FrameKinds kAnswersToJoin(FrameKind::kWelcome, FrameKind::kDenied);

Frame NewFrame(FrameKind kind, uint32_t number, absl::string_view payload) {
  Frame frame;
  frame.kind = kind;
  frame.number = number;
  frame.payload = std::string(payload);
  return frame;
}

}  // namespace

RendezvousClient::RendezvousClient(Options options, const Nonce& nonce)
    : options_(std::move(options)),
      nonce_(nonce),
      reader_(FrameKinds(FrameKind::kGreeting)) {}

RendezvousClient RendezvousClient::ForRankZero(Options options) {
  RendezvousClient client(std::move(options), Nonce{});
  client.joined_ = true;
  client.server_pid_ = client.options_.claim.pid;
  client.reader_.Expect(kToMembers);
  return client;
}

std::string RendezvousClient::ServerName() const {
  return joined_ ? absl::StrCat("rank 0 (pid ", server_pid_, ")") : "rank 0";
}

void RendezvousClient::Publish(uint32_t round, absl::string_view blob) {
  round_ = round;
  results_.clear();
  // A failure that came between two rounds ends the next.
  if (outcome_.has_value() && outcome_->ok()) outcome_.reset();
  Ask(NewFrame(FrameKind::kPublish, round, blob));
}

void RendezvousClient::Fail(const absl::Status& failure) {
  if (outcome_.has_value() && outcome_->ok()) outcome_.reset();
  Ask(FailureFrame(failure));
}

void RendezvousClient::GiveUp(absl::Duration timeout) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const int64_t milliseconds =
      std::min(kMost, absl::ToInt64Milliseconds(timeout));
  Ask(NewFrame(FrameKind::kGiveUp, static_cast<uint32_t>(milliseconds), ""));
}

void RendezvousClient::Leave() { Ask(NewFrame(FrameKind::kLeave, 0, "")); }

void RendezvousClient::Receive(absl::string_view bytes) {
  reader_.Append(bytes);
  while (!outcome_.has_value() || outcome_->ok()) {
    const absl::StatusOr<std::optional<Frame>> frame = reader_.Next();
    if (!frame.ok()) {
      return End(frame.status().code(),
                 absl::StrCat("what listens there is not this run's rank 0: "
                              "it sent ",
                              frame.status().message()));
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
      join_ = JoinFrame(options_.token, server_nonce_, nonce_, options_.claim);
      output_ += EncodeFrame(join_);
      return reader_.Expect(kAnswersToJoin);
    case FrameKind::kWelcome:
      return TakeWelcome(frame);
    case FrameKind::kDenied:
      return End(absl::StatusCode::kUnauthenticated,
                 absl::StrCat("rank ", options_.claim.rank,
                              " was refused: its token is not rank 0's"));
    case FrameKind::kResult:
      return TakeResult(frame);
    default: {  // The reader lets no others through but kFailure.
      outcome_ = DecodeFailure(frame);
      return;
    }
  }
}

void RendezvousClient::TakeWelcome(const Frame& frame) {
  if (!WelcomeKnowsToken(options_.token, server_nonce_, join_, frame)) {
    return End(absl::StatusCode::kUnauthenticated,
               "what listens there does not know the token");
  }
  joined_ = true;
  server_pid_ = frame.number;
  reader_.Expect(kToMembers);
  output_ += std::exchange(waiting_, "");
}

void RendezvousClient::TakeResult(const Frame& frame) {
  // Also false between rounds, when there is an outcome already.
  const bool awaited = !outcome_.has_value() && frame.number == round_ &&
                       frame.rank == static_cast<int64_t>(results_.size());
  if (!awaited) {
    return End(absl::StatusCode::kDataLoss,
               absl::StrCat(ServerName(), " sent a result out of turn"));
  }
  results_.push_back(frame.payload);
  if (results_.size() == options_.claim.world_size) {
    outcome_ = std::exchange(results_, {});
  }
}

void RendezvousClient::Ask(const Frame& frame) {
  (joined_ ? output_ : waiting_) += EncodeFrame(frame);
}

void RendezvousClient::End(absl::StatusCode code, absl::string_view what) {
  outcome_ = absl::Status(code, absl::StrCat(options_.where, ": ", what));
}

}  // namespace lockstep
