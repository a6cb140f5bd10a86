#include "collectives/nccl/peers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

// How soon the others hear of a failure: often enough for any user, and seldom
// beside what a large call takes.
constexpr absl::Duration kShareEvery = absl::Milliseconds(5);

// Polls that only make way for other threads; later ones sleep.
constexpr int kYields = 200;
constexpr absl::Duration kSleep = absl::Microseconds(50);

// Whether rank a's and rank b's calls fit together.
bool FitTogether(int a, const Call& of_a, int b, const Call& of_b) {
  if (!IsBetweenTwo(of_a.operation)) return Agree(of_a, of_b);
  return IsBetweenTwo(of_b.operation) && of_a.operation != of_b.operation &&
         of_a.peer == b && of_b.peer == a && of_a.type == of_b.type &&
         of_a.count == of_b.count;
}

}  // namespace

// Travels as bytes.
struct Peers::Message {
  Message() = default;
  Message(int rank, bool done, const absl::Status& status)
      : rank(rank), done(done), code(static_cast<int32_t>(status.code())) {
    const std::string message(status.message());
    std::copy_n(message.begin(), std::min(message.size(), sizeof(text) - 1),
                text);
  }

  absl::Status status() const {
    return absl::Status(static_cast<absl::StatusCode>(code), text);
  }

  Call call;
  int32_t rank = 0;
  int32_t done = 0;
  int32_t code = 0;
  char text[500] = {};
};

Peers::Peers(std::unique_ptr<Communicator> control)
    : control_(std::move(control)) {}

absl::Status Peers::Agree(const Call& call, const absl::Status& arguments,
                          const CallSite& site) {
  site_ = site;
  const bool between_two = IsBetweenTwo(call.operation);
  partner_ = between_two && IsPartner(call.peer) ? call.peer : -1;
  const absl::Status own = arguments.ok()
                               ? arguments
                               : CallRefused(rank(), call, arguments.message());
  if (between_two && partner_ < 0) {
    // There is nobody to tell but all: the control group refuses it for them.
    LOCKSTEP_RETURN_IF_ERROR(
        control_->Send(std::span<const std::byte>(), call.peer, site));
    return own;
  }
  if (!checks_) {
    const bool meets = own.ok() && call.operation == Operation::kBarrier;
    return meets ? control_->Barrier(site) : own;
  }
  Message message(rank(), false, own);
  message.call = call;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Message> all, Exchange(message));
  const Message& first = all.front();
  for (const Message& each : all) {
    if (!each.status().ok()) return each.status();
  }
  for (const Message& each : std::span(all).subspan(1)) {
    if (FitTogether(first.rank, first.call, each.rank, each.call)) continue;
    return CallsDiffer("ranks disagree", first.rank, first.call, each.rank,
                       each.call);
  }
  return absl::OkStatus();
}

bool Peers::IsPartner(int rank) const {
  return rank >= 0 && rank < world_size() && rank != this->rank();
}

absl::StatusOr<bool> Peers::Share(bool done, const absl::Status& own) {
  if (!checks_) {
    if (!own.ok()) return own;
    return done;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Message> all,
                            Exchange(Message(rank(), done, own)));
  unfinished_.clear();
  for (const Message& each : all) {
    if (!each.status().ok()) return each.status();
    if (!each.done) unfinished_.push_back(each.rank);
  }
  return unfinished_.empty();
}

std::string Peers::Unfinished() const {
  if (unfinished_.empty()) return absl::StrCat("on rank ", rank());
  return absl::StrCat("on ranks ", absl::StrJoin(unfinished_, ", "));
}

absl::StatusOr<std::vector<Peers::Message>> Peers::Exchange(
    const Message& own) {
  if (partner_ >= 0) return ExchangeWithPartner(own);
  std::vector<Message> all(world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      control_->AllGather(std::as_bytes(std::span(&own, 1)),
                          std::as_writable_bytes(std::span(all)), site_));
  return all;
}

absl::StatusOr<std::vector<Peers::Message>> Peers::ExchangeWithPartner(
    const Message& own) {
  Message other;
  const auto sent = std::as_bytes(std::span(&own, 1));
  const auto received = std::as_writable_bytes(std::span(&other, 1));
  // The lower rank speaks first, so that the two do not wait for each other.
  const bool is_lower = rank() < partner_;
  if (is_lower) {
    LOCKSTEP_RETURN_IF_ERROR(control_->Send(sent, partner_, site_));
  }
  LOCKSTEP_RETURN_IF_ERROR(control_->Receive(received, partner_, site_));
  if (!is_lower) {
    LOCKSTEP_RETURN_IF_ERROR(control_->Send(sent, partner_, site_));
    return std::vector<Message>{other, own};
  }
  return std::vector<Message>{own, other};
}

absl::Status CallProgress::Pause(int polls) {
  const absl::Time now = absl::Now();
  if (now > deadline_) {
    return absl::DeadlineExceededError(
        absl::StrCat("not finished after ", absl::FormatDuration(timeout_), " ",
                     peers_.Unfinished()));
  }
  if (polls == 0) next_share_ = now + kShareEvery;
  if (now >= next_share_) {
    const absl::StatusOr<bool> shared = peers_.Share(false, absl::OkStatus());
    if (!shared.ok()) {
      told_ = true;
      return shared.status();
    }
    next_share_ = absl::Now() + kShareEvery;
  }
  if (polls < kYields) {
    std::this_thread::yield();
  } else {
    absl::SleepFor(kSleep);
  }
  return absl::OkStatus();
}

absl::Status CallProgress::Finish(const absl::Status& own) {
  if (told_) return own;
  absl::Status named = own;
  if (!own.ok()) {
    named = absl::Status(own.code(), absl::StrCat(what_, ": ", own.message()));
  }
  for (;;) {
    const absl::StatusOr<bool> all_done = peers_.Share(true, named);
    if (!all_done.ok()) return all_done.status();
    if (*all_done) return absl::OkStatus();
  }
}

}  // namespace lockstep
