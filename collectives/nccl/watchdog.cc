#include "collectives/nccl/watchdog.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "collectives/agreement/agreement.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/call_poller.h"
#include "collectives/nccl/issue_order.h"

namespace lockstep {
namespace {

// The pauses between meetings of the ranks' threads. While calls are in
// progress, the pause is short enough to find mistakes quickly, but leaves most
// of the time to the rank's other threads. Otherwise the pause is long, but a
// rank that dies is still noticed well within a second.
constexpr absl::Duration kBusyPause = absl::Milliseconds(1);
constexpr absl::Duration kIdlePause = absl::Milliseconds(10);

// How long a rank that leaves waits for the other ranks to leave too.
constexpr absl::Duration kGrace = absl::Seconds(1);

// A status to be sent as bytes; a long message is cut off.
struct StatusBytes {
  StatusBytes() = default;
  explicit StatusBytes(const absl::Status& status)
      : code(static_cast<int32_t>(status.code())) {
    const absl::string_view message = status.message();
    std::copy_n(message.begin(), std::min(message.size(), sizeof(text) - 1),
                text);
  }

  absl::Status status() const {
    return absl::Status(static_cast<absl::StatusCode>(code), text);
  }

  int32_t code = 0;
  char text[500] = {};
};

template <typename T>
absl::StatusOr<std::vector<T>> AllGatherBytes(Communicator& control,
                                              const T& own) {
  std::vector<T> all(static_cast<size_t>(control.world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      control.AllGather(std::as_bytes(std::span(&own, 1)),
                        std::as_writable_bytes(std::span(all))));
  return all;
}

// Returns whether the call of rank a matches that of rank b. One of them is a
// Send or Receive with the other rank.
bool FitTogether(int a, const Call& of_a, int b, const Call& of_b) {
  return IsBetweenTwo(of_a.operation) && IsBetweenTwo(of_b.operation) &&
         of_a.operation != of_b.operation && of_a.peer == b && of_b.peer == a &&
         of_a.type == of_b.type && of_a.count == of_b.count;
}

absl::Status HasLeft(int gone, int rank, const Call& call) {
  return absl::UnavailableError(absl::StrCat("rank ", gone,
                                             " has left the group, and rank ",
                                             rank, " called ", ToString(call)));
}

// Returns the error of two ranks whose calls differ. Says so if all that
// differs is where their data lie in the group's memory.
absl::Status Differ(int rank, const Call& call, int other_rank,
                    const Call& other) {
  Call elsewhere = other;
  elsewhere.AddToHash(other.hash ^ call.hash);
  const bool in_place_alone =
      Reduces(other.operation) && Agree(call, elsewhere);
  return CallsDiffer(in_place_alone ? "ranks differ in where their data lie in "
                                      "the group's memory"
                                    : "ranks disagree",
                     rank, call, other_rank, other);
}

}  // namespace

absl::Status ShareStatus(Communicator& control, const absl::Status& own) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<StatusBytes> all,
                            AllGatherBytes(control, StatusBytes(own)));
  for (const StatusBytes& each : all) {
    if (each.code != 0) return each.status();
  }
  return absl::OkStatus();
}

// The state that a rank publishes at each meeting.
struct Watchdog::Heartbeat {
  // Further calls wait for the next meeting.
  static constexpr size_t kCalls = 8;

  StatusBytes failure;
  int64_t ended = 0;  // Calls of all ranks that have ended on this rank.
  int64_t open = 0;   // Calls that were published and have not ended.
  bool leaving = false;
  bool gone = false;  // The rank does not come to another meeting.
  int32_t call_count = 0;
  LoggedCall calls[kCalls];
};

Watchdog::Watchdog(std::unique_ptr<Communicator> control, Options options)
    : control_(std::move(control)),
      options_(std::move(options)),
      standings_(static_cast<size_t>(world_size())),
      poller_(options_.device),
      thread_([this] { Watch(); }) {}

Watchdog::~Watchdog() { Leave(); }

// The methods that the user calls.

absl::StatusOr<int64_t> Watchdog::Begin(const Call& call,
                                        const absl::Status& arguments) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return Report(lock, &call);
  if (!arguments.ok()) {
    own_failure_ = absl::IsInvalidArgument(arguments)
                       ? CallRefused(rank(), call, arguments.message())
                       : Named(arguments, &call);
    return WaitForFailure(lock);
  }
  return Log(call);
}

int64_t Watchdog::Log(const Call& call) {
  unpublished_.push_back({call, options_.order->NumberOf(call.operation)});
  open_.push_back(
      {.call = call, .number = begun_, .deadline = Deadline(options_.timeout)});
  return begun_++;
}

void Watchdog::Issued(std::shared_ptr<CallEvents> events) {
  const MutexLock lock(mutex_);
  // A failure may have ended the call already.
  if (open_.empty() || open_.back().number != begun_ - 1) return;
  if (events != nullptr) poller_.Add(open_.back().number, events);
  open_.back().issued = true;
  open_.back().events = std::move(events);
  // The time until now was this thread's. The stream may reach the call later.
  open_.back().started = false;
}

absl::Status Watchdog::Failed(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return Report(lock, nullptr);
  own_failure_ = Named(why, open_.empty() ? nullptr : &open_.back().call);
  return WaitForFailure(lock);
}

int64_t Watchdog::last_call() {
  const MutexLock lock(mutex_);
  return begun_ - 1;
}

absl::Status Watchdog::WaitForRanks(int64_t number) {
  MutexLock lock(mutex_);
  waiting_ = true;
  wake_.NotifyOne();
  changed_.Wait(lock, [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || matched_ > number;
  });
  waiting_ = false;
  return failure_.ok() ? absl::OkStatus() : Report(lock, nullptr);
}

int64_t Watchdog::LastOnStream(int64_t number) {
  const MutexLock lock(mutex_);
  const auto last = std::find_if(
      open_.rbegin(), open_.rend(), [number](const OpenCall& open) {
        return open.number <= number && open.events != nullptr;
      });
  return last == open_.rend() ? -1 : last->number;
}

absl::Status Watchdog::WaitForCallsUpTo(int64_t number) {
  LOCKSTEP_RETURN_IF_ERROR(WaitForRanks(number));
  const int64_t last = LastOnStream(number);
  if (last >= 0) poller_.Hurry(last);
  for (PollPauses pauses;; pauses.Pause()) {
    // Calls also end when the group has failed and aborted.
    const bool is_done = last < 0 || poller_.IsDone(last);
    MutexLock lock(mutex_);
    if (!failure_.ok()) return Report(lock, nullptr);
    if (is_done) return absl::OkStatus();
  }
}

bool Watchdog::HaveEndedUpTo(int64_t number) {
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return ended_;
  return open_.empty() || open_.front().number > number;
}

absl::StatusOr<std::unique_ptr<Communicator>> Watchdog::Split(
    const Call& call, int color, int key, const CallSite& site) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return Report(lock, &call);
  split_request_ = {color, key, site};
  Log(call);
  open_.back().issued = true;
  waiting_ = true;
  wake_.NotifyOne();
  changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || split_.has_value();
  });
  waiting_ = false;
  if (!failure_.ok()) return Report(lock, nullptr);
  return *std::exchange(split_, std::nullopt);
}

absl::StatusOr<std::shared_ptr<CallEvents>> Watchdog::TakeEvents() {
  {
    const MutexLock lock(mutex_);
    if (!spare_events_.empty()) {
      std::shared_ptr<CallEvents> events = std::move(spare_events_.back());
      spare_events_.pop_back();
      return events;
    }
  }
  auto events = std::make_shared<CallEvents>();
  LOCKSTEP_ASSIGN_OR_RETURN(events->started, MakeEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(events->done, MakeEvent());
  return events;
}

void Watchdog::ReturnEvents(std::shared_ptr<CallEvents> events) {
  const MutexLock lock(mutex_);
  spare_events_.push_back(std::move(events));
}

bool Watchdog::Leave() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      leaving_.emplace(kGrace);
      wake_.NotifyOne();
    }
    thread_.join();
  }
  const MutexLock lock(mutex_);
  return left_together_;
}

absl::Status Watchdog::Named(const absl::Status& status,
                             const Call* call) const {
  return absl::Status(
      status.code(),
      absl::StrCat("rank ", rank(), ": ",
                   call == nullptr ? "" : absl::StrCat(ToString(*call), ": "),
                   status.message()));
}

absl::Status Watchdog::Report(MutexLock& lock, const Call* call) {
  // Kernels may use the memory of calls until the watchdog's thread has ended.
  changed_.Wait(
      lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; });
  if (!std::exchange(reported_, true)) return failure_;
  if (call != nullptr) return CallAfterFailure(rank(), *call, failure_);
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank(),
                   " waits after the group had failed: ", failure_.message()));
}

absl::Status Watchdog::WaitForFailure(MutexLock& lock) {
  waiting_ = true;
  wake_.NotifyOne();
  changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok();
  });
  waiting_ = false;
  return Report(lock, nullptr);
}

// The methods of the watchdog's thread.

void Watchdog::Watch() {
  for (;;) {
    const absl::StatusOr<bool> last = Meet(NextBeat());
    if (!last.ok()) return Fail(last.status());
    const MutexLock lock(mutex_);
    ended_ = *last;
    changed_.NotifyAll();
    if (ended_) return;
  }
}

// Waits until the next meeting, and collects what this rank publishes there.
Watchdog::Heartbeat Watchdog::NextBeat() {
  MutexLock lock(mutex_);
  wake_.WaitFor(lock, absl::ToChronoMicroseconds(Pause()),
                [this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_; });
  NoteProgress();
  if (own_failure_.ok()) {
    const Call* const oldest = open_.empty() ? nullptr : &open_.front().call;
    for (const absl::Status& status : {poller_.error(), options_.health()}) {
      if (!status.ok()) own_failure_ = Named(status, oldest);
    }
  }
  if (own_failure_.ok()) own_failure_ = OverdueCall();

  Heartbeat beat;
  beat.failure = StatusBytes(own_failure_);
  beat.ended = collectives_ended_;
  while (!unpublished_.empty() && beat.call_count < int{Heartbeat::kCalls}) {
    beat.calls[beat.call_count++] = unpublished_.front();
    unpublished_.pop_front();
  }
  beat.open = static_cast<int64_t>(open_.size() - unpublished_.size());
  beat.leaving = leaving_.has_value() && unpublished_.empty();
  beat.gone = beat.leaving && (departed_rank_.has_value() || CanLeave());
  return beat;
}

// Returns whether this rank, which is leaving, may leave. It has waited kGrace
// for the other ranks, and longer if data of its calls may still be in
// transfer.
bool Watchdog::CanLeave() const {
  if (!leaving_->passed()) return false;
  const bool all_have_theirs =
      std::ranges::all_of(standings_, [](const RankProgress& each) {
        return each.open <= static_cast<int64_t>(each.unmatched.size());
      });
  return all_have_theirs || leaving_->elapsed() > options_.timeout;
}

absl::Duration Watchdog::Pause() const {
  if (waiting_ || unpublished_.size() > Heartbeat::kCalls) {
    return absl::ZeroDuration();
  }
  const bool busy =
      !open_.empty() || !unpublished_.empty() || leaving_.has_value();
  return busy ? kBusyPause : kIdlePause;
}

// Notes the progress of this rank's calls on the GPU.
void Watchdog::NoteProgress() {
  for (OpenCall& open : open_) {
    const bool on_stream = open.events != nullptr;
    if (!open.started) {
      if (on_stream && !poller_.HasStarted(open.number)) break;
      open.started = true;
      open.deadline = Deadline(options_.timeout);
    }
    if (!open.issued) break;
    open.done = !on_stream || poller_.IsDone(open.number);
    if (!open.done) break;
  }
  while (!open_.empty() && open_.front().done &&
         open_.front().number < matched_) {
    OpenCall& front = open_.front();
    if (!IsBetweenTwo(front.call.operation)) ++collectives_ended_;
    if (front.events != nullptr) {
      spare_events_.push_back(std::move(front.events));
    }
    open_.pop_front();
  }
}

absl::Status Watchdog::OverdueCall() const {
  for (const OpenCall& open : open_) {
    if (!open.started || !open.deadline.passed()) continue;
    return Named(
        absl::DeadlineExceededError(absl::StrCat(
            "not finished after ", absl::FormatDuration(options_.timeout),
            DescribeMissingRanks(open))),
        &open.call);
  }
  if (!open_.empty() && poller_.Unanswered() > options_.timeout) {
    return Named(absl::DeadlineExceededError(absl::StrCat(
                     "CUDA has not answered for ",
                     absl::FormatDuration(options_.timeout),
                     ": a thread of this rank may wait for the device, as "
                     "cudaFree does")),
                 &open_.front().call);
  }
  return absl::OkStatus();
}

// Returns " on ranks 0, 2; rank 1 has not called it", as far as known.
std::string Watchdog::DescribeMissingRanks(const OpenCall& open) const {
  if (IsBetweenTwo(open.call.operation)) {
    return open.number < matched_
               ? ""
               : absl::StrCat("; rank ", open.call.peer, " has not called it");
  }
  // The position of `open` among the calls of all ranks.
  int64_t number = collectives_ended_;
  for (const OpenCall& other : open_) {
    if (other.number == open.number) break;
    if (!IsBetweenTwo(other.call.operation)) ++number;
  }
  std::vector<int> missing;
  std::vector<int> unfinished;
  for (int rank = 0; rank < world_size(); ++rank) {
    const RankProgress& standing = standings_[static_cast<size_t>(rank)];
    if (rank != this->rank() && standing.collectives <= number) {
      missing.push_back(rank);
    } else if (standing.ended <= number) {
      unfinished.push_back(rank);
    }
  }
  const auto list = [](const std::vector<int>& ranks) {
    return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                        absl::StrJoin(ranks, ", "));
  };
  std::string text = absl::StrCat(" on ", list(unfinished));
  if (!missing.empty()) {
    absl::StrAppend(&text, "; ", list(missing),
                    missing.size() == 1 ? " has" : " have", " not called it");
  }
  return text;
}

// Returns whether this meeting was the last. Error: the group's failure.
absl::StatusOr<bool> Watchdog::Meet(const Heartbeat& own) {
  if (departed_rank_.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(own.failure.status());
    if (own.call_count > 0)
      return HasLeft(*departed_rank_, rank(), own.calls[0].call);
    return own.gone;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Heartbeat> beats,
                            AllGatherBytes(*control_, own));
  for (const Heartbeat& beat : beats) {
    LOCKSTEP_RETURN_IF_ERROR(beat.failure.status());
  }
  for (int rank = 0; rank < world_size(); ++rank) {
    Take(rank, beats[static_cast<size_t>(rank)]);
  }
  LOCKSTEP_RETURN_IF_ERROR(Match());
  LOCKSTEP_RETURN_IF_ERROR(CheckLeavers());
  const bool together = std::ranges::all_of(
      beats, [](const Heartbeat& beat) { return beat.leaving; });
  const MutexLock lock(mutex_);
  left_together_ = together;
  return together || own.gone;
}

void Watchdog::Take(int rank, const Heartbeat& beat) {
  RankProgress& standing = standings_[static_cast<size_t>(rank)];
  for (int32_t i = 0; i < beat.call_count; ++i) {
    standing.unmatched.push_back(beat.calls[i]);
    if (!IsBetweenTwo(beat.calls[i].call.operation)) ++standing.collectives;
  }
  standing.ended = beat.ended;
  standing.open = beat.open;
  standing.leaving = beat.leaving;
  if (beat.gone) departed_rank_ = rank;
}

absl::Status Watchdog::Match() {
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool by_all, MatchCollective());
    LOCKSTEP_ASSIGN_OR_RETURN(const bool by_two, MatchMessages());
    if (!by_all && !by_two) return absl::OkStatus();
  }
}

// Removes a call of all ranks if every rank has made it. Returns whether there
// was one. Error: the calls differ.
absl::StatusOr<bool> Watchdog::MatchCollective() {
  for (const RankProgress& each : standings_) {
    if (each.unmatched.empty() ||
        IsBetweenTwo(each.unmatched.front().call.operation)) {
      return false;
    }
  }
  const auto call_of = [this](int rank) {
    return &standings_[static_cast<size_t>(rank)].unmatched.front().call;
  };
  const auto [rank, other] = FindDisagreement(world_size(), call_of);
  if (rank >= 0) return Differ(rank, *call_of(rank), other, *call_of(other));
  LOCKSTEP_RETURN_IF_ERROR(CheckOrder());
  const Operation operation = call_of(0)->operation;
  for (int rank = 0; rank < world_size(); ++rank) Pop(rank);
  if (operation == Operation::kSplit) {
    LOCKSTEP_RETURN_IF_ERROR(SplitControl());
  }
  return true;
}

// Returns an error if the next call of all ranks has different positions among
// the calls that ranks begin.
absl::Status Watchdog::CheckOrder() const {
  const LoggedCall& first = standings_[0].unmatched.front();
  for (int rank = 1; rank < world_size(); ++rank) {
    const LoggedCall& other =
        standings_[static_cast<size_t>(rank)].unmatched.front();
    if (first.order == other.order || first.order == IssueOrder::kUnknown ||
        other.order == IssueOrder::kUnknown) {
      continue;
    }
    return CallsDiffer(
        absl::StrCat("ranks begin the calls of two groups in different orders "
                     "(call ",
                     first.order, " on rank 0 is call ", other.order,
                     " on rank ", rank, ")"),
        0, first.call, rank, other.call);
  }
  return absl::OkStatus();
}

// Removes a matching Send and Receive of two ranks. Returns whether there was a
// pair. Error: the calls do not match.
absl::StatusOr<bool> Watchdog::MatchMessages() {
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto& own = standings_[static_cast<size_t>(rank)].unmatched;
    if (own.empty() || !IsBetweenTwo(own.front().call.operation)) continue;
    const Call& call = own.front().call;
    const int peer = call.peer;
    const auto& other = standings_[static_cast<size_t>(peer)].unmatched;
    if (other.empty()) continue;
    const Call& other_call = other.front().call;
    if (IsBetweenTwo(other_call.operation) && other_call.peer != rank) {
      continue;  // The other rank's message is with a third rank.
    }
    if (!FitTogether(rank, call, peer, other_call)) {
      const int lower = std::min(rank, peer);
      const int upper = std::max(rank, peer);
      return CallsDiffer(
          "ranks disagree", lower,
          standings_[static_cast<size_t>(lower)].unmatched.front().call, upper,
          standings_[static_cast<size_t>(upper)].unmatched.front().call);
    }
    Pop(rank);
    Pop(peer);
    return true;
  }
  return false;
}

void Watchdog::Pop(int rank) {
  standings_[static_cast<size_t>(rank)].unmatched.pop_front();
  if (rank != this->rank()) return;
  const MutexLock lock(mutex_);
  ++matched_;
}

// Returns an error if a rank waits for a rank that has left, since that call
// would never end.
absl::Status Watchdog::CheckLeavers() const {
  std::vector<RankFacts> facts(standings_.size());
  bool any_left = false;
  for (size_t i = 0; i < facts.size(); ++i) {
    const RankProgress& each = standings_[i];
    facts[i].reached = !each.unmatched.empty();
    facts[i].left = each.leaving && each.unmatched.empty();
    any_left |= facts[i].left;
  }
  if (!any_left) return absl::OkStatus();
  int gone = world_size();
  int caller = -1;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto& waiting = standings_[static_cast<size_t>(rank)].unmatched;
    if (waiting.empty()) continue;
    const Call& call = waiting.front().call;
    const bool with_partner = IsBetweenTwo(call.operation);
    for (int peer = 0; peer < world_size(); ++peer) {
      facts[peer].awaited = with_partner && peer == call.peer;
    }
    const GoneRank found = FindGone(facts, rank, with_partner);
    if (found.rank < 0 || found.rank >= gone) continue;
    gone = found.rank;
    caller = rank;
  }
  if (caller < 0) return absl::OkStatus();
  return HasLeft(
      gone, caller,
      standings_[static_cast<size_t>(caller)].unmatched.front().call);
}

absl::Status Watchdog::SplitControl() {
  SplitRequest request;
  {
    const MutexLock lock(mutex_);
    request = split_request_;
  }
  auto part = control_->Split(request.color, request.key, request.site);
  LOCKSTEP_RETURN_IF_ERROR(part.status());
  const MutexLock lock(mutex_);
  split_ = *std::move(part);
  return absl::OkStatus();
}

void Watchdog::Fail(const absl::Status& failure) {
  options_.order->GroupHasFailed();
  {
    const MutexLock lock(mutex_);
    failure_ = failure;
  }
  // If a rank aborts, its kernels end, and other ranks' kernels with them. All
  // ranks therefore learn of the failure before any rank aborts. An error of
  // the barrier means that the control group has failed too, and is ignored.
  if (!departed_rank_.has_value()) static_cast<void>(control_->Barrier());
  options_.abort();
  const MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

}  // namespace lockstep
