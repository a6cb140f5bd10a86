// The events of a rank's calls on the GPU, and the thread that queries them.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_CALL_POLLER_H_
#define LOCKSTEP_COLLECTIVES_NCCL_CALL_POLLER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"

namespace lockstep {

// The events at which a call's position in the stream is reached, and at which
// the call is done.
struct CallEvents {
  Event started;
  Event done;
};

// Sets the calling thread's device. Its queries then do not invalidate a
// capture by another thread. Errors: CudaStatus's.
absl::Status UseDeviceBesideCaptures(int device);

// The pauses of a thread that polls: none at first, so that a short wait takes
// no longer, and short ones later.
class PollPauses {
 public:
  void Pause();

 private:
  std::optional<std::chrono::steady_clock::time_point> first_;
};

// A thread that queries CUDA for the progress of a rank's calls.
//
// A query can block while another thread of the process waits for the device,
// as cudaFree does. If that thread waits for a kernel that hangs, the query
// blocks as long. The methods below never wait for the thread that queries.
//
// One thread adds calls. Any thread may call the other methods.
class CallPoller {
 public:
  explicit CallPoller(int device);
  // Ends the thread. If CUDA does not answer its query within half a second,
  // the thread is abandoned, and ends once CUDA has answered.
  ~CallPoller();
  CallPoller(const CallPoller&) = delete;
  CallPoller& operator=(const CallPoller&) = delete;

  // Adds a call that is on its streams. Calls start and end in the order in
  // which they are added. number: more than the earlier calls' numbers. events:
  // recorded, not in a capture, and not recorded again before IsDone(number).
  void Add(int64_t number, std::shared_ptr<const CallEvents> events);

  // Polls with PollPauses from now on, and not once a millisecond, until call
  // `number` has ended: a thread waits for it.
  void Hurry(int64_t number);

  // Return whether an added call has started, or ended, when it was queried
  // last: some milliseconds ago at most, if CUDA answers.
  bool HasStarted(int64_t number) const;
  bool IsDone(int64_t number) const;

  // Returns the time for which CUDA has not answered the query in progress;
  // zero if there is none.
  absl::Duration Unanswered() const;

  // Returns the first error of a query, after which the thread has ended.
  absl::Status error() const;

 private:
  struct State;

  // Shared with the thread, which may be abandoned.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_CALL_POLLER_H_
