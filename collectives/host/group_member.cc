#include "collectives/host/group_member.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/agreement/agreement.h"
#include "collectives/collective.h"
#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

// The interval at which a sleeper looks for dead ranks, well under the 1 s
// promised.
constexpr std::chrono::milliseconds kLookEvery(10);

// How long a rank with a core of its own looks at the others before it sleeps.
// A sleep and a wake-up cost up to 100 us in a virtual machine, so a wait takes
// at most a few times as long as the better of the two ways. ResNet-18 waits 34
// times a step for SyncBN: a step takes 1.9 and 2.3% longer than with local
// batch norm at 20 us, 1.3 and 1.8% at 300 us, 1.9 and 2.0% at 2 ms.
constexpr std::chrono::microseconds kSpinTime(300);

// The number of looks between two readings of the clock.
constexpr int kLooksPerReading = 32;

// The number of times that a rank yields its core before it sleeps, when ranks
// share cores. A yield costs a fraction of a microsecond and lets another rank
// run. A sleep and its wake-up take tens of microseconds, and cost the waking
// rank time too.
constexpr int kYields = 200;

// The most ranks that each read the words of all others in Meet. More ranks
// count in one word, because each would otherwise be woken once by every other
// rank.
constexpr int kFewRanks = 4;

// The most of a gap between two looks that counts towards the timeout. In a
// longer gap this process was stopped or had no core. That time must not count
// against other ranks, which may have waited just as long for this one.
constexpr absl::Duration kLongestGap = absl::Milliseconds(100);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Fetches the data that a rank has staged, while this rank looks at the other
// ranks and their calls. An earlier fetch would take a line from the rank that
// still writes it.
void PrefetchLines(const std::byte* staged) {
  for (int line = 0; line < 4; ++line) {
    __builtin_prefetch(staged + line * 64);
  }
}

// Fetches a line for writing. __builtin_prefetch would fetch it for reading, if
// the compiler may not assume that the processor has prefetchw. Processors
// without the instruction ignore it.
void PrefetchToWrite(const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, /*rw=*/1);
#endif
}

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

int64_t Nanos(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` holds `expected`, until FutexWake or `timeout`. May
// return early: the caller looks again.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0) return;
  timespec relative;
  relative.tv_sec = timeout.count() / 1'000'000'000;
  relative.tv_nsec = timeout.count() % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
          &relative, nullptr, 0);
}

// Wakes all threads that sleep on `word`, in any process that maps it.
void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
}

}  // namespace

ProcessWatch::ProcessWatch(const std::vector<ProcessIdentity>& processes,
                           int rank)
    : rank_(rank) {
  for (size_t i = 0; i < processes.size(); ++i) {
    Peer peer{processes[i], OwnedFd(), false};
    if (static_cast<int>(i) != rank) {
      // The kernel closes the pidfd on exec.
      peer.pidfd = OwnedFd(
          static_cast<int>(syscall(SYS_pidfd_open, processes[i].pid, 0)));
      // The check comes after pidfd_open, so the pidfd belongs to this process
      // and not to a later one with its number.
      peer.dead = !IsAlive(processes[i]);
    }
    peers_.push_back(std::move(peer));
  }
}

uint64_t ProcessWatch::Dead() {
  std::vector<pollfd> handles;
  for (const Peer& peer : peers_) {
    handles.push_back({peer.pidfd.get(), POLLIN, 0});
  }
  poll(handles.data(), handles.size(), 0);
  uint64_t dead = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (static_cast<int>(i) == rank_) continue;
    const bool ended = peer.pidfd.open() ? handles[i].revents != 0
                                         : !peer.dead && !IsAlive(peer.process);
    peer.dead = peer.dead || ended;
    if (peer.dead) dead |= uint64_t{1} << i;
  }
  return dead;
}

GroupMember::GroupMember(std::shared_ptr<SharedRegion> region, int rank,
                         absl::Duration timeout,
                         std::unique_ptr<ProcessWatch> watch, int cores)
    : region_(std::move(region)),
      rank_(rank),
      timeout_(timeout),
      watch_(std::move(watch)),
      // Spinning on a core that the awaited rank needs would only delay that
      // rank.
      spin_time_(region_->shape().world_size <= cores
                     ? kSpinTime
                     : Clock::duration::zero()),
      yields_(region_->shape().world_size <= cores ? 0 : kYields),
      own_(region_->control(rank)),
      partner_calls_(region_->shape().world_size) {
  own_.awake_nanos.store(Nanos(Clock::now()), std::memory_order_relaxed);
}

GroupMember::~GroupMember() {
  own_.left.store(1, std::memory_order_seq_cst);
  WakeAll();
}

absl::Status GroupMember::Begin(const Call& call) {
  if (!failure_.ok()) {
    return CallAfterFailure(rank_, call, failure_);
  }
  call_ = call;
  if (region_->header().failed_rank.load(std::memory_order_acquire) == 0) {
    return absl::OkStatus();
  }
  return failure_ = FirstCause();
}

// Returns a rank's slot of the running call. Two slots suffice: Enter returns
// only once all ranks have begun the call. No rank is thus more than one call
// ahead of another, and none overwrites a slot that is being read.
CallSlot& GroupMember::Slot(int peer) const {
  return region_->control(peer).calls[sequence_ % 2];
}

uint64_t GroupMember::Others() const {
  const uint64_t all =
      world_size() == 64 ? ~uint64_t{0} : Bit(world_size()) - 1;
  return all & ~Bit(rank_);
}

absl::Status GroupMember::Enter(const Call& call, const BufferLocation& input,
                                const BufferLocation& output,
                                std::span<const std::byte> here) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  ++sequence_;
  CallSlot& slot = Slot(rank_);
  slot.call = call;
  if (input.kind == BufferLocation::kInline) {
    slot.input.kind = BufferLocation::kInline;
    std::memcpy(slot.here(), here.data(), here.size());
  } else {
    slot.input = input;
    slot.output = output;
  }
  slot.sequence.store(sequence_, std::memory_order_release);
  const bool staged = input.kind == BufferLocation::kStaged;
  LOCKSTEP_RETURN_IF_ERROR(
      Meet(region_->header().begun, sequence_, [this, staged](int peer) {
        const bool reached = HasReached(peer);
        if (staged && reached) PrefetchLines(Staged(peer).data());
        return reached;
      }));
  absl::Status agreement = Disagreement();
  return agreement.ok() ? agreement : Fail(agreement);
}

// Marks this rank as in memory, unless the group has failed. Either this rank
// sees that the group has failed, or the failing rank sees that this one is in
// memory: both write one word and then read the other's, seq_cst.
absl::Status GroupMember::BeginInMemory() {
  own_.in_memory.store(1, std::memory_order_seq_cst);
  if (region_->header().failed_rank.load(std::memory_order_seq_cst) == 0) {
    return absl::OkStatus();
  }
  EndInMemory();
  return Fail(FirstCause());
}

void GroupMember::EndInMemory() {
  own_.in_memory.store(0, std::memory_order_seq_cst);
}

// Waits while other ranks reduce or copy, because this rank's caller may free
// its buffers after the error. Does nothing for processes: group buffers stay
// mapped, and a stopped process would block this rank.
void GroupMember::AwaitBuffersUnused() const {
  if (watch_ != nullptr) return;
  for (int peer = 0; peer < world_size(); ++peer) {
    while (region_->control(peer).in_memory.load(std::memory_order_seq_cst) !=
           0) {
      std::this_thread::yield();
    }
  }
}

absl::Status GroupMember::Complete() {
  ++completions_;
  own_.completed.store(completions_, std::memory_order_release);
  return Meet(region_->header().completed, completions_, [this](int peer) {
    return region_->control(peer).completed.load(std::memory_order_seq_cst) >=
           completions_;
  });
}

// Meets the other ranks. Few ranks read each other's own words, which is
// fastest. Among many ranks, the last one to come wakes the others, so that
// each sleeps and wakes once.
absl::Status GroupMember::Meet(std::atomic<uint64_t>& counter, uint64_t meeting,
                               absl::FunctionRef<bool(int peer)> has_come) {
  const bool few = world_size() <= kFewRanks;
  const uint64_t all = meeting * static_cast<uint64_t>(world_size());
  const auto all_have_come = [&] {
    if (!few) return counter.load(std::memory_order_seq_cst) >= all;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (!has_come(peer)) return false;
    }
    return true;
  };
  if (!few) {
    if (counter.fetch_add(1, std::memory_order_seq_cst) + 1 == all) {
      for (int peer = 0; peer < world_size(); ++peer) Notify(peer);
    }
    return WaitFor(Others(), all_have_come);
  }
  // A rank that sleeps until this rank comes also waits for the missing ranks,
  // and they wake it. It is thus soon enough to look for sleepers once all are
  // here. At that time the fence need not wait for this rank's step to reach
  // the other cores. The fence orders the step before Notify's load, as seq_cst
  // would.
  const bool all_here = Spin(all_have_come);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < world_size(); ++peer) Notify(peer);
  return all_here ? absl::OkStatus() : Await(Others(), all_have_come);
}

std::span<std::byte> GroupMember::StagedForNext() const {
  return region_->staged(rank_, sequence_ + 1);
}

std::span<const std::byte> GroupMember::Staged(int peer) const {
  return region_->staged(peer, sequence_);
}

void GroupMember::ExpectToStage(int64_t bytes) const {
  const std::byte* const staged = StagedForNext().data();
  for (int64_t i = 0; i < bytes; i += 64) PrefetchToWrite(staged + i);
}

absl::Status GroupMember::EnterWithPartner(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(call));
  with_partner_ = true;
  own_.with_partner.Store(call);
  own_.partner.store(PartnerWord(++partner_calls_[call.peer], call.peer),
                     std::memory_order_seq_cst);
  return absl::OkStatus();
}

void GroupMember::LeavePartner() {
  with_partner_ = false;
  own_.partner.store(0, std::memory_order_seq_cst);
}

bool GroupMember::HasReached(int peer) const {
  return Slot(peer).sequence.load(std::memory_order_seq_cst) == sequence_;
}

// Compares the calls of the ranks that have reached the running call.
absl::Status GroupMember::Disagreement() const {
  return CompareCalls(sequence_, world_size(), [this](int peer) -> const Call* {
    return HasReached(peer) ? &Slot(peer).call : nullptr;
  });
}

// Returns an error if neither of two ranks' calls can end. One of them is in a
// call of the two (Send, Receive) and waits for the other rank. The other rank
// is in a call of all ranks and waits for the first. Either of the two ranks
// may be this one.
absl::Status GroupMember::DisagreementWithPartner() const {
  if (with_partner_) {
    const CallSlot& next =
        region_->control(call_.peer).calls[(sequence_ + 1) % 2];
    if (next.sequence.load(std::memory_order_seq_cst) != sequence_ + 1) {
      return absl::OkStatus();
    }
    return CallsDiffer("ranks disagree", rank_, call_, call_.peer, next.call);
  }
  for (int peer = 0; peer < world_size(); ++peer) {
    // The word of the next call of the two, which this rank should make but
    // does not.
    const uint64_t awaited = PartnerWord(partner_calls_[peer] + 1, rank_);
    const RankControl& control = region_->control(peer);
    if (HasReached(peer) ||
        control.partner.load(std::memory_order_seq_cst) != awaited) {
      continue;
    }
    const Call call = control.with_partner.Load();
    // If the word changed, that call ended meanwhile, and `call` may be another
    // one.
    if (control.partner.load(std::memory_order_seq_cst) != awaited) continue;
    return CallsDiffer("ranks disagree", rank_, call_, peer, call);
  }
  return absl::OkStatus();
}

absl::Status GroupMember::WaitFor(uint64_t peers,
                                  absl::FunctionRef<bool()> ready) {
  return Spin(ready) ? absl::OkStatus() : Await(peers, ready);
}

bool GroupMember::Spin(absl::FunctionRef<bool()> ready) const {
  if (ready()) return true;
  if (spin_time_ == Clock::duration::zero()) return false;
  // The clock is first read after some looks, because a small call mostly ends
  // before it, and the reading would only delay that call.
  Clock::time_point deadline = Clock::time_point::max();
  while (true) {
    for (int i = 0; i < kLooksPerReading; ++i) {
      Pause();
      if (ready()) return true;
    }
    const Clock::time_point now = Clock::now();
    if (deadline == Clock::time_point::max()) deadline = now + spin_time_;
    if (now >= deadline) return false;
  }
}

absl::Status GroupMember::Await(uint64_t peers,
                                absl::FunctionRef<bool()> ready) {
  for (int i = 0; i < yields_; ++i) {
    if (ready()) return absl::OkStatus();
    std::this_thread::yield();
  }
  absl::Status status = Sleep(peers, ready);
  own_.waiting_for.store(0, std::memory_order_seq_cst);
  return status.ok() ? status : Fail(status);
}

// Sleeps until `ready` returns true. Either the other rank's step comes before
// `ready` looks, or that rank sees the bit and bumps the doorbell, so that
// FutexWait does not sleep. Both write one word and then read the other's, in
// the one order that seq_cst gives.
absl::Status GroupMember::Sleep(uint64_t peers,
                                absl::FunctionRef<bool()> ready) {
  Clock::time_point last_look = Clock::now();
  Clock::time_point next_look = last_look + kLookEvery;
  absl::Duration waited;  // Counts only while this process ran.
  while (true) {
    const uint32_t bell = own_.doorbell.load(std::memory_order_seq_cst);
    own_.waiting_for.store(peers, std::memory_order_seq_cst);
    if (ready()) return absl::OkStatus();
    const Clock::time_point now = Clock::now();
    own_.awake_nanos.store(Nanos(now), std::memory_order_relaxed);
    absl::Status trouble = LookForFailure(peers);
    if (trouble.ok() && now >= next_look) {
      waited += std::min(absl::FromChrono(now - last_look), kLongestGap);
      trouble = LookForTrouble(peers, waited);
      last_look = now;
      next_look = now + kLookEvery;
    }
    // A rank may have died or left after the awaited step.
    if (!trouble.ok()) return ready() ? absl::OkStatus() : trouble;
    FutexWait(own_.doorbell, bell, next_look - now);
  }
}

absl::Status GroupMember::LookForFailure(uint64_t peers) const {
  if (region_->header().failed_rank.load(std::memory_order_acquire) != 0) {
    return FirstCause();
  }
  return ErrorOfGone(peers, /*lost=*/0);
}

std::array<RankFacts, kMaxWorldSize> GroupMember::FactsOf(uint64_t awaited,
                                                          uint64_t lost) const {
  std::array<RankFacts, kMaxWorldSize> facts;
  const int64_t now = Nanos(Clock::now());
  for (int peer = 0; peer < world_size(); ++peer) {
    const RankControl& control = region_->control(peer);
    facts[peer] = {.reached = HasReached(peer),
                   .awaited = (awaited & Bit(peer)) != 0,
                   .left = HasLeft(peer),
                   .lost = (lost & Bit(peer)) != 0,
                   .silent_nanos = now - control.awake_nanos.load(
                                             std::memory_order_relaxed)};
  }
  return facts;
}

absl::Status GroupMember::ErrorOfGone(uint64_t awaited, uint64_t lost) const {
  const auto facts = FactsOf(awaited, lost);
  const GoneRank gone =
      FindGone(std::span(facts).first(world_size()), rank_, with_partner_);
  if (gone.rank < 0) return absl::OkStatus();
  return gone.left ? LeftError(NameOf(gone.rank), AsWitness())
                   : LostError(NameOf(gone.rank), "died", AsWitness());
}

absl::Status GroupMember::LookForTrouble(uint64_t peers,
                                         absl::Duration waited) const {
  LOCKSTEP_RETURN_IF_ERROR(DisagreementWithPartner());
  if (!with_partner_) LOCKSTEP_RETURN_IF_ERROR(Disagreement());
  if (watch_ != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(ErrorOfGone(peers, watch_->Dead()));
  }
  if (waited < timeout_) return absl::OkStatus();
  return LateError(NameOf(LateRank()), timeout_, /*obstacle=*/"", AsWitness());
}

// Returns the rank that holds this one up: the partner in a call of two.
// Otherwise a rank that has not looked for longest, because ranks that wait
// look every 10 ms.
int GroupMember::LateRank() const {
  const auto facts = FactsOf(with_partner_ ? Bit(call_.peer) : 0, /*lost=*/0);
  return FindLate(std::span(facts).first(world_size()), rank_,
                  /*patience_nanos=*/INT64_MIN);
}

void GroupMember::Notify(int peer) {
  RankControl& control = region_->control(peer);
  if ((control.waiting_for.load(std::memory_order_seq_cst) & Bit(rank_)) == 0) {
    return;
  }
  // If several ranks notify at the same time, one of them is enough to wake it.
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
  return Fail(CallRefused(rank_, call, why));
}

absl::Status GroupMember::Fail(const absl::Status& cause) {
  if (!failure_.ok()) return failure_;
  // No rank reads this text while it is written: others read it only if the
  // exchange below succeeds, and that is tried once.
  const size_t size = std::min(cause.message().size(), sizeof(own_.failure));
  std::memcpy(own_.failure, cause.message().data(), size);
  own_.failure_size = static_cast<uint32_t>(size);
  own_.failure_code = static_cast<int32_t>(cause.code());
  uint32_t none = 0;
  region_->header().failed_rank.compare_exchange_strong(
      none, static_cast<uint32_t>(rank_) + 1, std::memory_order_seq_cst);
  WakeAll();
  AwaitBuffersUnused();
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
  return RankName(peer, pid);
}

Witness GroupMember::AsWitness() const {
  return {rank_, sequence_, with_partner_, call_};
}

}  // namespace lockstep
