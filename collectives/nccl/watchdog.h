// The exchange of the ranks of an NCCL group beside NCCL: the calls that each
// makes, and their progress.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_
#define LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/call_poller.h"
#include "collectives/nccl/issue_order.h"

namespace lockstep {

// Returns the status of the lowest rank that has an error; OK if none has one.
// Every rank must call it. Errors: also the control group's.
absl::Status ShareStatus(Communicator& control, const absl::Status& own);

// One rank's log of its calls, and a thread that compares it with the other
// ranks' logs and makes sure that every call ends.
//
// A hundred times a second, or more often while calls are in progress, the
// threads of all ranks meet in an AllGather of the control group. Each
// publishes its new calls and their progress. All ranks then have the same
// facts, and reach the same conclusions. The group fails if calls do not match,
// ranks begin the calls of this group and another in different orders,
// a rank made an invalid call, a call has been on a GPU for longer than the
// timeout, NCCL or CUDA reported an error, CUDA did not answer for the timeout,
// a rank left while another called, or a rank died. Every rank then fails at
// once, with one message that says which rank did what. (Errors of the control
// group itself may differ between ranks.) Once a rank has left, no more calls
// can be made.
//
// The thread calls nothing of CUDA, which may block it. Another thread queries
// the events of calls (call_poller.h).
//
// One thread of the rank, the user, calls the methods below.
class Watchdog {
 public:
  struct Options {
    int device = 0;
    absl::Duration timeout;  // For each call, from its start on the GPU.
    // Shared by the groups whose calls every rank must begin in one order. Not
    // null.
    std::shared_ptr<IssueOrder> order = std::make_shared<IssueOrder>();
    // The watchdog's thread calls both, which must not wait for CUDA. health:
    // returns an error that was reported after the call that caused it had
    // returned. abort: ends the group's work on its streams, after which
    // nothing uses the memory of calls. abort is called once, when the group
    // has failed, before the user learns of the failure.
    std::function<absl::Status()> health;
    std::function<void()> abort;
  };

  // control: on host memory, with the same ranks as the group.
  Watchdog(std::unique_ptr<Communicator> control, Options options);
  ~Watchdog();  // Calls Leave.
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  int rank() const { return control_->rank(); }
  int world_size() const { return control_->world_size(); }

  // Records that the user makes `call`, and returns its number, counted from 0.
  // Must be called before anything of the call is put on a stream; Issued or
  // Failed must follow. arguments: an error if this rank's arguments are wrong,
  // as a phrase that continues "rank 1 called Gather(...) but ". Errors: the
  // group's failure, also if `arguments` is an error. The failure is returned
  // once on this rank; later errors are kFailedPrecondition and include it.
  absl::StatusOr<int64_t> Begin(const Call& call,
                                const absl::Status& arguments);

  // Records that the whole last call is on its streams. The call has ended once
  // events->done is reached; if `events` is null, once every rank has made the
  // call.
  void Issued(std::shared_ptr<CallEvents> events);

  // Fails the group because this rank could not enqueue its last call. Returns
  // the group's failure, which is `why` unless a lower rank has another
  // failure.
  absl::Status Failed(const absl::Status& why);

  // Blocks until every rank that takes part in the last call has made it.
  // Errors: the group's failure, as in Begin.
  absl::Status WaitForRanks() { return WaitForRanks(last_call()); }

  // Blocks until all calls have ended on this rank, and every rank that takes
  // part in them has made them. Calls nothing of CUDA, so that it ends in time
  // even if CUDA does not answer. Errors: the group's failure, as in Begin.
  absl::Status WaitForCalls() { return WaitForCallsUpTo(last_call()); }

  // The same for the calls up to call `number`.
  absl::Status WaitForCallsUpTo(int64_t number);

  // Returns whether WaitForCallsUpTo would not block: the calls have ended, or
  // the group has failed.
  bool HaveEndedUpTo(int64_t number);

  // Records a kSplit, and splits the control group once every rank has made the
  // call. Returns null for a negative color. Errors: the group's failure, as in
  // Begin.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(const Call& call,
                                                      int color, int key,
                                                      const CallSite& site);

  // Returns events for a call, to be recorded and passed to Issued. Events are
  // reused. Errors: CudaStatus's.
  absl::StatusOr<std::shared_ptr<CallEvents>> TakeEvents();
  void ReturnEvents(std::shared_ptr<CallEvents> events);

  // Ends the thread. Waits a second for the other ranks to leave too. If this
  // rank's calls have not ended on other ranks, waits as long as the timeout,
  // since data may still be in transfer. Also waits for the control group,
  // whose ranks may be stopped. Returns whether all ranks left without a
  // failure: NCCL's communicators may then be destroyed, which the ranks of a
  // host must do together.
  bool Leave();

 private:
  // A call of this rank that has not ended.
  struct OpenCall {
    Call call;
    int64_t number = 0;
    Deadline deadline;  // Restarts when the call starts.
    bool issued = false;
    bool started = false;  // The calls before it are done.
    bool done = false;  // On this rank; other ranks may not have made the call.
    std::shared_ptr<CallEvents> events = {};  // Null if none are recorded.
  };
  struct Heartbeat;
  // A call as it is compared between ranks.
  struct LoggedCall {
    Call call;
    int64_t order = IssueOrder::kUnknown;
  };
  // The facts about one rank, which all ranks know.
  struct RankProgress {
    std::deque<LoggedCall> unmatched;  // Calls that wait for matching calls.
    int64_t collectives = 0;  // The calls of all ranks that it has made.
    int64_t ended = 0;        // The calls of all ranks that have ended there.
    int64_t open = 0;         // Calls of any kind that have not ended.
    bool leaving = false;
  };
  struct SplitRequest {
    int color = 0;
    int key = 0;
    CallSite site;
  };

  // The methods of the watchdog's thread.
  void Watch();
  Heartbeat NextBeat();
  // Returns whether it was the last.
  absl::StatusOr<bool> Meet(const Heartbeat& own);
  void Take(int rank, const Heartbeat& beat);
  absl::Status Match();
  absl::StatusOr<bool> MatchCollective();
  absl::StatusOr<bool> MatchMessages();
  absl::Status CheckLeavers() const;
  absl::Status CheckOrder() const;
  void Pop(int rank);
  absl::Status SplitControl();
  void Fail(const absl::Status& failure);

  int64_t last_call();
  // Returns the last call up to `number` that has events and has not ended; -1
  // if there is none.
  int64_t LastOnStream(int64_t number);
  absl::Status WaitForRanks(int64_t number);
  int64_t Log(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration Pause() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanLeave() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OverdueCall() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeMissingRanks(const OpenCall& open) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Named(const absl::Status& status, const Call* call) const;
  absl::Status Report(MutexLock& lock, const Call* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitForFailure(MutexLock& lock)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<Communicator> control_;
  const Options options_;

  // Used only by the watchdog's thread.
  std::vector<RankProgress> standings_;  // By rank.
  int64_t collectives_ended_ = 0;        // On this rank.
  std::optional<int>
      departed_rank_;  // A rank that has left; the ranks no longer meet.

  Mutex mutex_;
  ConditionVariable wake_;     // Wakes the watchdog: the user waits.
  ConditionVariable changed_;  // Wakes the user: a meeting has ended.
  std::deque<OpenCall> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<LoggedCall> unpublished_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<CallEvents>> spare_events_
      ABSL_GUARDED_BY(mutex_);
  // The calls of this rank, and those that match other ranks'.
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t matched_ ABSL_GUARDED_BY(mutex_) = 0;
  // To be sent to the other ranks.
  absl::Status own_failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // The group's.
  // Whether the user has got failure_.
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the user waits for other ranks.
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Deadline> leaving_ ABSL_GUARDED_BY(mutex_);
  bool left_together_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the thread's last meeting is over.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  SplitRequest split_request_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::unique_ptr<Communicator>> split_ ABSL_GUARDED_BY(mutex_);

  CallPoller poller_;
  std::thread thread_;  // Last: it uses the members above.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_
