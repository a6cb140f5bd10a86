// One rank's place in a host group: agreeing on calls, waiting, failing.
#ifndef LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_
#define LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_

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
#include "collectives/collective.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

// Watches one process for each rank. Not thread safe.
class PeerWatch {
 public:
  // processes: in rank order; `rank` is the one not to watch: oneself. One that
  // ended before now counts as dead.
  PeerWatch(const std::vector<ProcessIdentity>& processes, int rank);

  // The ranks whose process has ended, one bit each. Cost: a system call, and
  // on a kernel without pidfd_open (before 5.3) one file read for each rank.
  uint64_t Dead();

 private:
  struct Peer {
    ProcessIdentity process;
    OwnedFd pidfd;  // None: IsAlive decides.
    bool dead;
  };
  std::vector<Peer> peers_;
  int rank_;
};

// Not thread safe: one thread at a time uses it. Destroying it is leaving.
//
// After any error that a method returns, the group has failed: every rank gets
// the first such error, and Enter returns kFailedPrecondition from then on.
class GroupMember {
 public:
  // `watch` is null where ranks are threads, which cannot die alone. `cores`:
  // those that the ranks have together.
  GroupMember(std::shared_ptr<SharedRegion> region, int rank,
              absl::Duration timeout, std::unique_ptr<PeerWatch> watch,
              int cores);
  ~GroupMember();
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return region_->shape().world_size; }
  SharedRegion& region() { return *region_; }

  // Begins the next call: returns once every rank has begun it too and all
  // agree on it. The others may read this rank's buffers at `input` and
  // `output` until Complete returns. Errors: kInvalidArgument if they do not
  // agree, as soon as two are there that do not; and WaitFor's.
  //
  // here: of an input that is kHere, at most kHereBytes, which travel in the
  // line that says that this rank has come. All of that line is written at
  // once: the others look at it all the time, and take it away from who writes
  // it.
  absl::Status Enter(const Call& call, const Place& input = {},
                     const Place& output = {},
                     std::span<const std::byte> here = {});

  bool has_failed() const { return !failure_.ok(); }

  // What a rank stages before Enter, the others may read after it: no second
  // meeting is needed, since each call has other memory than the one before.
  // Not to be written once the group has failed: others may still read.
  std::span<std::byte> StagedForNext() const;
  std::span<const std::byte> Staged(int peer) const;
  // Begins to fetch the lines that the next call's first `bytes` will be staged
  // in. Others have read them since they were written, so the rank would wait
  // for each when it writes them.
  void ExpectToStage(int64_t bytes) const;

  // What a rank gave to Enter as `here`.
  const std::byte* Here(int peer) const { return Slot(peer).here(); }

  // In the running call: where a rank has its buffers.
  Place input_of(int peer) const { return Slot(peer).input; }
  Place output_of(int peer) const {
    const CallSlot& slot = Slot(peer);
    return slot.input.kind == Place::kHere ? Place{Place::kNothing}
                                           : slot.output;
  }

  // Before and after this rank reads and writes other ranks' buffers in the
  // running call. Where ranks are threads, no rank's call returns an error in
  // between, so that the buffers are there. Error: the group's first cause.
  absl::Status BeginInMemory();
  void EndInMemory();

  // Ends the running call: returns once every rank has come to its end. Calls
  // after which no rank reads another's memory do without.
  absl::Status Complete();

  // Begins and ends a call of this rank and `call.peer` alone. In between, the
  // group fails with kInvalidArgument if the peer is in a call of all ranks,
  // where it would wait for this rank for ever.
  absl::Status EnterWithPartner(const Call& call);
  void LeavePartner();

  // Returns once `ready` holds. `peers` are the ranks whose steps make it hold,
  // one bit each; they call Notify after such a step. `ready` must read what
  // they write with memory order seq_cst, and they must write it so, or have a
  // fence of that order before they call Notify.
  //
  // Errors: kUnavailable if any rank died or one of `peers` left;
  // kDeadlineExceeded after the timeout; another rank's error.
  absl::Status WaitFor(uint64_t peers, absl::FunctionRef<bool()> ready);

  // Wakes `peer` if it sleeps for this rank. Cost: without a sleeper, a load.
  void Notify(int peer);

  // Makes the group fail with `cause`, unless it already has, and returns the
  // first cause. The message should name this rank.
  absl::Status Fail(const absl::Status& cause);

  // In place of Enter, for a call whose arguments are wrong on this rank: makes
  // the group fail with kInvalidArgument, "rank 1 called X but <why>".
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
  bool HasReached(int peer) const;  // The call that is running.
  uint64_t Lacking() const;         // The ranks that have not.
  bool HasLeft(int peer) const;
  // Looks at `ready` for up to spin_time_, and at least once. Returns whether
  // it holds.
  bool Spin(absl::FunctionRef<bool()> ready) const;
  // WaitFor, after it has spun.
  absl::Status Await(uint64_t peers, absl::FunctionRef<bool()> ready);
  absl::Status Sleep(uint64_t peers, absl::FunctionRef<bool()> ready);
  absl::Status LookForFailure(uint64_t peers) const;
  absl::Status LookForTrouble(absl::Duration waited) const;
  int LongestAsleep() const;
  absl::Status FirstCause() const;
  std::string NameOf(int peer) const;  // "rank 1 (pid 77)".
  // " (seen by rank 0 in call 12, Barrier() at ...)".
  std::string SeenBy() const;
  void WakeAll();
  void AwaitNobodyInMemory() const;

  const std::shared_ptr<SharedRegion> region_;
  const int rank_;
  const absl::Duration timeout_;
  const std::unique_ptr<PeerWatch> watch_;
  const Clock::duration spin_time_;
  const int yields_;
  RankControl& own_;
  uint64_t sequence_ = 0;  // Of the call that is running, or the last one.
  Call call_;
  uint64_t completions_ = 0;
  bool with_partner_ = false;
  std::vector<uint64_t> partner_calls_;  // Begun, by partner.
  absl::Status failure_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMBER_H_
