// Collectives that run while the caller computes.
#ifndef LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_

#include <future>
#include <queue>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/pending_collective.h"

namespace lockstep {

// Starts the calls of one rank, which run in the order in which they were
// started. If the communicator enqueues, the caller's thread starts them.
// Otherwise they run on a thread of their own, and nobody else may use the
// communicator while a call is pending.
//
// Borrows the communicator. Not thread safe: one thread starts and waits for
// all calls. (Any thread may wait for a handle if the communicator does not
// enqueue.)
class AsyncCommunicator {
 public:
  explicit AsyncCommunicator(Communicator& communicator);
  ~AsyncCommunicator();  // Finishes all calls that were started.
  AsyncCommunicator(const AsyncCommunicator&) = delete;
  AsyncCommunicator& operator=(const AsyncCommunicator&) = delete;

  // Starts `call`, for example Collective::AllReduce(gradients). The buffers of
  // the call are borrowed until it is done.
  PendingCollective Start(const Collective& call);

  // Blocks until every call started so far is done. Returns the first error
  // since the last Wait. The caller may then use the communicator directly.
  absl::Status Wait();

 private:
  struct Pending {
    Collective call;
    std::promise<absl::Status> result;
    absl::Status status;  // A field, so that the lock guards it (see Work).
  };

  void Work();
  Pending* Next();

  Communicator& communicator_;
  // The calls since the last Wait of a communicator that enqueues.
  std::vector<PendingCollective> enqueued_;
  Mutex mutex_;
  ConditionVariable changed_;
  // The calls that were started and are not done.
  std::queue<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // None if the communicator enqueues. Last: it uses all other fields.
  std::thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
