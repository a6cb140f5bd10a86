// What the ranks of an NCCL group tell each other beside NCCL: what they call,
// and how it goes.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_
#define LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/deadline.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Returns the status of the lowest rank that has an error; OK if none has one.
// Every rank calls it. Errors: the control group's, too.
absl::Status ShareStatus(Communicator& control, const absl::Status& own);

// When a call's turn on the GPU came, and when it was done there. Null for a
// call that put nothing on a stream.
struct CallEvents {
  Event started;
  Event done;
};

// One rank's log of its calls, and a thread that compares it with the other
// ranks' and sees to it that every call ends.
//
// Some hundred times a second the threads of all ranks meet in an AllGather of
// the control group, in which each publishes its new calls and how it fares.
// All then have the same facts, and come to the same conclusions: that calls do
// not fit together, that a rank called something impossible, that a call has
// been on a GPU for longer than the timeout, that NCCL or CUDA reported an
// error, that a rank left while another called, or died. Each of these ends the
// group on every rank at once, with one message that says who did what (but for
// errors of the control group itself, which each rank has its own of). Once a
// rank has gone, no call can be made any more.
//
// One thread of the rank, the user, makes the calls below.
class Watchdog {
 public:
  struct Options {
    int device = 0;
    absl::Duration timeout;  // For each call, from its turn on the GPU.
    // Both are called by the watchdog's thread. health: an error that was
    // reported since the call that it belongs to returned. abort: ends what the
    // group has on its streams, after which nothing uses the memory of calls;
    // called once, when the group has failed, before anybody learns of it.
    std::function<absl::Status()> health;
    std::function<void()> abort;
  };

  // control: of host memory, with the same ranks as the group.
  Watchdog(std::unique_ptr<Communicator> control, Options options);
  ~Watchdog();  // Leaves, if that has not been done.
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  int rank() const { return control_->rank(); }
  int world_size() const { return control_->world_size(); }

  // Notes that the user makes `call`, and returns its number, which counts up
  // from 0. Before anything of the call is put on a stream; then Issued, or
  // Failed. arguments: why this rank's are wrong, as a phrase that continues
  // "rank 1 called Gather(...) but ". Error: if they are, or the group has
  // failed: the failure, the first time that it is returned on this rank, later
  // kFailedPrecondition with it.
  absl::StatusOr<int64_t> Begin(const Call& call,
                                const absl::Status& arguments);

  // Notes that all of the last call is on its streams. It has ended once
  // events.done has come; without events, once every rank has called it.
  void Issued(CallEvents events);

  // Ends the group, because this rank could not put its last call on its
  // streams. Returns the group's failure, which is this one if no lower rank
  // has another.
  absl::Status Failed(const absl::Status& why);

  // Blocks until every rank that takes part in the last call has called it.
  // Errors: the group's failure, as in Begin.
  absl::Status WaitForRanks();

  // Blocks until all calls have ended here and every rank that takes part in
  // them has called them. Errors: the group's failure, as in Begin.
  absl::Status WaitForCalls();

  // Notes a kSplit, and splits the control group once every rank has come to
  // it. Null for a negative color. Errors: the group's failure, as in Begin.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(const Call& call,
                                                      int color, int key,
                                                      const CallSite& site);

  // Events for a call, to be recorded and handed to Issued. They are used
  // again. Errors: CudaStatus's.
  absl::StatusOr<CallEvents> TakeEvents();
  void ReturnEvents(CallEvents events);

  // Ends the thread. Waits a second for the other ranks to leave too; for as
  // long as the timeout where calls of this rank have not ended on them, since
  // data may be on its way; and for the control group, whose ranks may be
  // stopped. Returns whether all left in health: NCCL's communicators may then
  // be destroyed, which the ranks of a host must do together.
  bool Leave();

 private:
  // A call of this rank that has not ended.
  struct OpenCall {
    Call call;
    int64_t number = 0;
    Deadline deadline;  // Starts again when the call's turn comes.
    bool issued = false;
    bool started = false;  // Its turn has come: those before it are done.
    bool done = false;     // Here; other ranks may not have come to it.
    CallEvents events = {};
  };
  struct Beat;
  // What is known of a rank by all.
  struct Standing {
    std::deque<Call> unmatched;  // Calls that wait for those of other ranks.
    int64_t collectives = 0;     // How many calls of all ranks it has made,
    int64_t ended = 0;           // and how many of them have ended there.
    int64_t open = 0;            // Calls of any kind that have not.
    bool leaving = false;
  };
  struct SplitRequest {
    int color = 0;
    int key = 0;
    CallSite site;
  };

  // The watchdog's thread.
  void Watch();
  Beat NextBeat();
  absl::StatusOr<bool> Meet(const Beat& own);  // Whether it was the last.
  void Take(int rank, const Beat& beat);
  absl::Status Match();
  absl::StatusOr<bool> MatchCollective();
  absl::StatusOr<bool> MatchMessages();
  absl::Status CheckLeavers() const;
  void Pop(int rank);
  absl::Status SplitControl();
  void Fail(const absl::Status& failure);

  // With mutex_ held.
  int64_t Log(const Call& call);
  absl::Duration Pause() const;
  bool MayGo() const;
  absl::Status PollCalls();
  absl::Status OverdueCall() const;
  std::string WhoIsMissing(const OpenCall& open) const;
  absl::Status Named(const absl::Status& status, const Call* call) const;
  absl::Status Report(std::unique_lock<std::mutex>& lock, const Call* call);
  absl::Status WaitForFailure(std::unique_lock<std::mutex>& lock);

  const std::unique_ptr<Communicator> control_;
  const Options options_;

  // Of the watchdog's thread alone.
  std::vector<Standing> standings_;  // By rank.
  int64_t collectives_ended_ = 0;    // Of this rank.
  std::optional<int> gone_;          // A rank that has: nobody meets any more.

  // Guards what follows. Not absl::Mutex: ThreadSanitizer does not see into the
  // distribution's build of it.
  std::mutex mutex_;
  std::condition_variable wake_;     // For the watchdog: somebody waits.
  std::condition_variable changed_;  // For the user: a beat has ended.
  std::deque<OpenCall> open_;
  std::deque<Call> unpublished_;
  std::vector<CallEvents> spare_events_;
  int64_t begun_ = 0;         // Calls of this rank,
  int64_t matched_ = 0;       // of which so many fit those of other ranks.
  absl::Status own_failure_;  // To be told to the others.
  absl::Status failure_;      // The group's.
  bool reported_ = false;     // The user knows of it.
  bool waiting_ = false;      // The user does, for other ranks.
  std::optional<Deadline> leaving_;
  bool left_together_ = false;
  bool ended_ = false;  // The thread has met the others for the last time.
  SplitRequest split_request_;
  std::optional<std::unique_ptr<Communicator>> split_;

  std::thread thread_;  // Last: it uses all the others.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_WATCHDOG_H_
