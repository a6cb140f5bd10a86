#include "collectives/host/group_member.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/host/call.h"
#include "collectives/host/futex.h"
#include "collectives/host/peer_watch.h"
#include "collectives/host/shared_region.h"
#include "collectives/usable_cores.h"

namespace lockstep {
namespace {

// How often a sleeper looks for dead ranks: well under the 100 ms promised.
constexpr std::chrono::milliseconds kLookEvery(10);

// About as long as a sleep and a wake-up cost, a few tens of microseconds.
constexpr int kSpins = 1000;

// Spinning on a core that the awaited rank needs would only delay it.
int SpinsFor(int world_size) {
  return world_size <= UsableCores() ? kSpins : 0;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

int64_t Nanos(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

GroupMember::GroupMember(std::shared_ptr<SharedRegion> region, int rank,
                         absl::Duration timeout,
                         std::unique_ptr<PeerWatch> watch)
    : region_(std::move(region)),
      rank_(rank),
      timeout_(timeout),
      watch_(std::move(watch)),
      spins_(SpinsFor(region_->shape().world_size)),
      own_(region_->control(rank)) {
  own_.awake_nanos.store(Nanos(Clock::now()), std::memory_order_relaxed);
}

GroupMember::~GroupMember() {
  own_.left.store(1, std::memory_order_seq_cst);
  WakeAll();
}

absl::Status GroupMember::Begin(const Call& call) {
  if (!failure_.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_, " called ", ToString(call),
                     " after the group had failed: ", failure_.message()));
  }
  call_ = call;
  ++sequence_;
  if (region_->header().failed_rank.load(std::memory_order_acquire) == 0) {
    return absl::OkStatus();
  }
  return failure_ = FirstCause();
}

absl::Status GroupMember::Enter(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  CallSlot& slot = own_.calls[sequence_ % 2];
  slot.call = call;
  slot.sequence.store(sequence_, std::memory_order_seq_cst);
  for (int peer = 0; peer < world_size(); ++peer) Notify(peer);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (HasReached(peer)) continue;
    // Who waits for one rank at a time is woken once by each, not by all.
    LOCKSTEP_RETURN_IF_ERROR(
        WaitFor(Bit(peer), [&] { return HasReached(peer); }));
  }
  absl::Status agreement = Disagreement();
  return agreement.ok() ? agreement : Fail(agreement);
}

bool GroupMember::HasReached(int peer) const {
  return region_->control(peer).calls[sequence_ % 2].sequence.load(
             std::memory_order_seq_cst) == sequence_;
}

uint64_t GroupMember::Lacking() const {
  uint64_t lacking = 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (!HasReached(peer)) lacking |= Bit(peer);
  }
  return lacking;
}

absl::Status GroupMember::Disagreement() const {
  const Call& first = region_->control(0).calls[sequence_ % 2].call;
  for (int peer = 1; peer < world_size(); ++peer) {
    const Call& other = region_->control(peer).calls[sequence_ % 2].call;
    if (other == first) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks disagree on call ", sequence_, ": rank 0 called ",
        ToString(first), ", rank ", peer, " called ", ToString(other)));
  }
  return absl::OkStatus();
}

absl::Status GroupMember::WaitFor(uint64_t peers,
                                  absl::FunctionRef<bool()> ready) {
  for (int i = 0; i < spins_; ++i) {
    if (ready()) return absl::OkStatus();
    Pause();
  }
  absl::Status status = Sleep(peers, ready);
  own_.waiting_for.store(0, std::memory_order_seq_cst);
  return status.ok() ? status : Fail(status);
}

// Either the peer's step comes before `ready` looks, or the peer sees the bit
// and bumps the doorbell, so that FutexWait does not sleep: both write one word
// and then read the other's, in the one order that seq_cst gives.
absl::Status GroupMember::Sleep(uint64_t peers,
                                absl::FunctionRef<bool()> ready) {
  const Clock::time_point start = Clock::now();
  Clock::time_point next_look = start + kLookEvery;
  while (true) {
    const uint32_t bell = own_.doorbell.load(std::memory_order_seq_cst);
    own_.waiting_for.store(peers, std::memory_order_seq_cst);
    if (ready()) return absl::OkStatus();
    const Clock::time_point now = Clock::now();
    own_.awake_nanos.store(Nanos(now), std::memory_order_relaxed);
    absl::Status trouble = LookForFailure(peers);
    if (trouble.ok() && now >= next_look) {
      trouble = LookForSilence(absl::FromChrono(now - start));
      next_look = now + kLookEvery;
    }
    // What went wrong may have done so after the step that was waited for.
    if (!trouble.ok()) return ready() ? absl::OkStatus() : trouble;
    FutexWait(own_.doorbell, bell, next_look - now);
  }
}

absl::Status GroupMember::LookForFailure(uint64_t peers) const {
  if (region_->header().failed_rank.load(std::memory_order_acquire) != 0) {
    return FirstCause();
  }
  const uint64_t awaited = peers | Lacking();
  for (int peer = 0; peer < world_size(); ++peer) {
    if ((awaited & Bit(peer)) != 0 && HasLeft(peer)) {
      return absl::UnavailableError(
          absl::StrCat(NameOf(peer), " left the group", SeenBy()));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupMember::LookForSilence(absl::Duration waited) const {
  const uint64_t dead = watch_ == nullptr ? 0 : watch_->Dead();
  for (int peer = 0; peer < world_size(); ++peer) {
    // Who ended after it left did so in good order.
    if ((dead & Bit(peer)) != 0 && !HasLeft(peer)) {
      return absl::UnavailableError(
          absl::StrCat(NameOf(peer), " died", SeenBy()));
    }
  }
  if (waited < timeout_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(NameOf(LongestAsleep()), " did not come within ",
                   absl::FormatDuration(timeout_), SeenBy()));
}

// Ranks that wait look up every 10 ms, so the one that holds the others up is
// the one that has not looked for longest.
int GroupMember::LongestAsleep() const {
  const uint64_t lacking = Lacking();
  int longest = -1;
  int64_t earliest = 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    if (lacking != 0 && (lacking & Bit(peer)) == 0) continue;
    const int64_t awake =
        region_->control(peer).awake_nanos.load(std::memory_order_relaxed);
    if (longest < 0 || awake < earliest) {
      longest = peer;
      earliest = awake;
    }
  }
  return longest;
}

void GroupMember::Notify(int peer) {
  RankControl& control = region_->control(peer);
  if ((control.waiting_for.load(std::memory_order_seq_cst) & Bit(rank_)) == 0) {
    return;
  }
  // One of several who notify at the same time is enough to wake it.
  if (control.waiting_for.exchange(0, std::memory_order_seq_cst) == 0) return;
  control.doorbell.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(control.doorbell);
}

void GroupMember::WakeAll() {
  for (int peer = 0; peer < world_size(); ++peer) {
    std::atomic<uint32_t>& doorbell = region_->control(peer).doorbell;
    doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWake(doorbell);
  }
}

absl::Status GroupMember::Refuse(const Call& call, absl::string_view why) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  return Fail(absl::InvalidArgumentError(
      absl::StrCat("rank ", rank_, " called ", ToString(call), " but ", why)));
}

absl::Status GroupMember::Fail(const absl::Status& cause) {
  if (!failure_.ok()) return failure_;
  // Others read this rank's text only if it wins, and it tries but once.
  const size_t size = std::min(cause.message().size(), sizeof(own_.failure));
  std::memcpy(own_.failure, cause.message().data(), size);
  own_.failure_size = static_cast<uint32_t>(size);
  own_.failure_code = static_cast<int32_t>(cause.code());
  uint32_t none = 0;
  region_->header().failed_rank.compare_exchange_strong(
      none, static_cast<uint32_t>(rank_) + 1, std::memory_order_acq_rel);
  WakeAll();
  return failure_ = FirstCause();
}

absl::Status GroupMember::FirstCause() const {
  const uint32_t failed =
      region_->header().failed_rank.load(std::memory_order_acquire);
  const RankControl& control = region_->control(static_cast<int>(failed) - 1);
  return absl::Status(static_cast<absl::StatusCode>(control.failure_code),
                      absl::string_view(control.failure, control.failure_size));
}

bool GroupMember::HasLeft(int peer) const {
  return region_->control(peer).left.load(std::memory_order_seq_cst) != 0;
}

std::string GroupMember::NameOf(int peer) const {
  const int64_t pid =
      region_->control(peer).pid.load(std::memory_order_relaxed);
  return pid == 0 ? absl::StrCat("rank ", peer)
                  : absl::StrCat("rank ", peer, " (pid ", pid, ")");
}

std::string GroupMember::SeenBy() const {
  return absl::StrCat(" (seen by rank ", rank_, " in call ", sequence_, ", ",
                      ToString(call_), ")");
}

}  // namespace lockstep
