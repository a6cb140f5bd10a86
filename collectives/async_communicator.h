// Collectives that run while the caller computes.
#ifndef LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// A call that was started. Copies stand for the same call. Any thread may wait.
class PendingCollective {
 public:
  // Blocks until the call is done; its status. Its buffers are then the
  // caller's again.
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

// Runs the calls of one rank, in the order in which they were started, on a
// thread of its own. Borrows the communicator, which nobody else may use while
// a call is pending. Not thread safe: one thread starts and waits for all.
class AsyncCommunicator {
 public:
  explicit AsyncCommunicator(Communicator& communicator)
      : communicator_(communicator), thread_([this] { Work(); }) {}
  ~AsyncCommunicator();  // Finishes what was started.
  AsyncCommunicator(const AsyncCommunicator&) = delete;
  AsyncCommunicator& operator=(const AsyncCommunicator&) = delete;

  // Starts `call`, for example Collective::AllReduce(gradients). Its buffers
  // are borrowed until the call is done.
  PendingCollective Start(const Collective& call);

  // Blocks until everything started so far is done. Returns the first error
  // since the last Wait. The communicator may then be used directly.
  absl::Status Wait();

 private:
  struct Pending {
    Collective call;
    std::promise<absl::Status> result;
    absl::Status status;  // Here, so that it goes under the lock (see Work).
  };

  void Work();
  Pending* Next();

  Communicator& communicator_;
  // Not absl::Mutex: ThreadSanitizer does not see into the distribution's
  // build of it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Pending> pending_;  // Started and not done, guarded by mutex_.
  absl::Status first_error_;     // Guarded by mutex_.
  bool stopping_ = false;        // Guarded by mutex_.
  std::thread thread_;           // Last: it uses all the others.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
