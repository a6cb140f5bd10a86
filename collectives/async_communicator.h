// Collectives that run while the caller computes.
#ifndef LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_

#include <chrono>
#include <future>
#include <queue>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// A handle of a call that was started. Copies stand for the same call. Any
// thread may wait.
class PendingCollective {
 public:
  // Blocks until the call is done. Returns its status. The buffers of the call
  // then belong to the caller again.
  absl::Status Wait() const { return result_.get(); }
  bool done() const {
    return result_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }

 private:
  friend class AsyncCommunicator;
  explicit PendingCollective(std::shared_future<absl::Status> result)
      : result_(std::move(result)) {}

  std::shared_future<absl::Status> result_;
};

// Runs the calls of one rank on a thread of its own, in the order in which they
// were started. Borrows the communicator: nobody else may use it while a call
// is pending. Not thread safe: one thread starts and waits for all calls.
class AsyncCommunicator {
 public:
  explicit AsyncCommunicator(Communicator& communicator)
      : communicator_(communicator), thread_([this] { Work(); }) {}
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
  Mutex mutex_;
  ConditionVariable changed_;
  // The calls that were started and are not done.
  std::queue<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last, because it uses all other fields.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
