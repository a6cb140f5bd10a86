// One rank's membership in a host group: it agrees on calls, waits and fails.
#ifndef LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_
#define LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "collectives/agreement/agreement.h"
#include "collectives/collective.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

// Watches one process for each rank. Not thread safe.
class ProcessWatch {
 public:
  // processes: by rank. `rank` is this process's own rank, which is not
  // watched. A process that ended before now counts as dead.
  ProcessWatch(const std::vector<ProcessIdentity>& processes, int rank);

  // Returns the ranks whose process has ended, one bit each. Cost: a system
  // call; on a kernel without pidfd_open (before 5.3), one file read for each
  // rank.
  uint64_t Dead();

 private:
  struct Peer {
    ProcessIdentity process;
    OwnedFd pidfd;  // If not open, IsAlive decides.
    bool dead;
  };
  std::vector<Peer> peers_;
  int rank_;
};

// One rank's membership. Not thread safe: one thread at a time uses it. The
// rank leaves the group when the member is destroyed.
//
// After a method returns an error, the group has failed. Every rank gets the
// first such error, and Enter returns kFailedPrecondition from then on.
class GroupMember {
 public:
  // `watch` is null if ranks are threads, which cannot die alone. cores: the
  // number of cores that the ranks have together.
  GroupMember(std::shared_ptr<SharedRegion> region, int rank,
              absl::Duration timeout, std::unique_ptr<ProcessWatch> watch,
              int cores);
  ~GroupMember();
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return region_->shape().world_size; }
  SharedRegion& region() { return *region_; }

  // Begins the next call. Returns once every rank has begun it and all agree on
  // it. The others may read this rank's buffers at `input` and `output` until
  // Complete returns. Errors: kInvalidArgument as soon as two ranks have begun
  // different calls; and WaitFor's.
  //
  // here: an input that is kInline, at most kInlineBytes. It travels in the
  // same line as the word that says that this rank has come. All of that line
  // is written at once, because the other ranks read it all the time, and each
  // read takes it away from the writer.
  absl::Status Enter(const Call& call, const BufferLocation& input = {},
                     const BufferLocation& output = {},
                     std::span<const std::byte> here = {});

  bool has_failed() const { return !failure_.ok(); }

  // Returns the memory that this rank stages in before Enter, and the data that
  // a rank has staged. Other ranks may read staged data after Enter. No second
  // meeting is needed, because each call has other memory than the one before.
  // Do not write once the group has failed, because others may still read.
  std::span<std::byte> StagedForNext() const;
  std::span<const std::byte> Staged(int peer) const;
  // Begins to fetch the lines in which the next call's first `bytes` will be
  // staged. Other ranks have read these lines since they were written, so
  // without the fetch this rank would wait for each line that it writes.
  void ExpectToStage(int64_t bytes) const;

  // Returns the data that a rank gave to Enter as `here`.
  const std::byte* Here(int peer) const { return Slot(peer).here(); }

  // Return a rank's buffers in the running call.
  BufferLocation input_of(int peer) const { return Slot(peer).input; }
  BufferLocation output_of(int peer) const {
    const CallSlot& slot = Slot(peer);
    return slot.input.kind == BufferLocation::kInline
               ? BufferLocation{BufferLocation::kNothing}
               : slot.output;
  }

  // Mark the time in which this rank reads and writes other ranks' buffers in
  // the running call. If ranks are threads, no rank's call returns an error in
  // that time, so the buffers stay valid. Error: the group's first cause.
  absl::Status BeginInMemory();
  void EndInMemory();

  // Ends the running call. Returns once every rank has come to its end. A call
  // after which no rank reads another's memory does not need Complete.
  absl::Status Complete();

  // Begins and ends a call of this rank and `call.peer` alone. In between, the
  // group fails with kInvalidArgument if that rank is in a call of all ranks,
  // because it would wait for this rank without end.
  absl::Status EnterWithPartner(const Call& call);
  void LeavePartner();

  // Returns once `ready` returns true. `peers` are the ranks whose steps make
  // it true, one bit each; they call Notify after such a step. `ready` must
  // read their words with memory order seq_cst. They must write those words
  // with seq_cst too, or have a fence of that order before they call Notify.
  //
  // Errors: kUnavailable if any rank died or one of `peers` left;
  // kDeadlineExceeded after the timeout; another rank's error.
  absl::Status WaitFor(uint64_t peers, absl::FunctionRef<bool()> ready);

  // Wakes `peer` if it sleeps for this rank. Cost: without a sleeper, a load.
  void Notify(int peer);

  // Makes the group fail with `cause`, unless it already has. Returns the first
  // cause. The message should name this rank.
  absl::Status Fail(const absl::Status& cause);

  // Replaces Enter for a call whose arguments are wrong on this rank. Makes the
  // group fail with kInvalidArgument, "rank 1 called X but <why>".
  absl::Status Refuse(const Call& call, absl::string_view why);

 private:
  using Clock = std::chrono::steady_clock;

  absl::Status Begin(const Call& call);
  CallSlot& Slot(int peer) const;
  uint64_t Others() const;
  absl::Status Meet(std::atomic<uint64_t>& counter, uint64_t meeting,
                    absl::FunctionRef<bool(int peer)> has_come);
  absl::Status Disagreement() const;
  absl::Status DisagreementWithPartner() const;
  bool HasReached(int peer) const;  // The running call.
  bool HasLeft(int peer) const;
  // Looks at `ready` for up to spin_time_, and at least once. Returns whether
  // it holds.
  bool Spin(absl::FunctionRef<bool()> ready) const;
  // Continues WaitFor, after it has spun.
  absl::Status Await(uint64_t peers, absl::FunctionRef<bool()> ready);
  absl::Status Sleep(uint64_t peers, absl::FunctionRef<bool()> ready);
  absl::Status LookForFailure(uint64_t peers) const;
  absl::Status LookForTrouble(uint64_t peers, absl::Duration waited) const;
  // Returns the facts about each rank. awaited, lost: one bit for each rank.
  std::array<RankFacts, kMaxWorldSize> FactsOf(uint64_t awaited,
                                               uint64_t lost) const;
  absl::Status ErrorOfGone(uint64_t awaited, uint64_t lost) const;
  int LateRank() const;
  absl::Status FirstCause() const;
  std::string NameOf(int peer) const;  // Such as "rank 1 (pid 77)".
  Witness AsWitness() const;
  void WakeAll();
  void AwaitBuffersUnused() const;

  const std::shared_ptr<SharedRegion> region_;
  const int rank_;
  const absl::Duration timeout_;
  const std::unique_ptr<ProcessWatch> watch_;
  const Clock::duration spin_time_;
  const int yields_;
  RankControl& own_;
  uint64_t sequence_ = 0;  // The running call, or the last one.
  Call call_;
  uint64_t completions_ = 0;
  bool with_partner_ = false;
  std::vector<uint64_t> partner_calls_;  // The calls begun, by partner.
  absl::Status failure_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_
