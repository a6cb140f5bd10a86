#include "collectives/async_communicator.h"

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

class AsyncCommunicator::Worker {
 public:
  explicit Worker(Communicator& communicator)
      : communicator_(communicator), thread_([this] { Work(); }) {}

  ~Worker() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::shared_future<absl::Status> Start(const Collective& call) {
    std::promise<absl::Status> promise;
    std::shared_future<absl::Status> result = promise.get_future().share();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pending_.push({call, std::move(promise), absl::OkStatus()});
    }
    changed_.notify_all();
    return result;
  }

  absl::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return pending_.empty(); });
    return std::exchange(first_error_, absl::OkStatus());
  }

 private:
  struct Pending {
    Collective call;
    std::promise<absl::Status> result;
    absl::Status status;  // Here, so that it goes under the lock (see Work).
  };

  void Work() {
    while (Pending* const next = Next()) {
      next->status = communicator_.Run(next->call);
      next->result.set_value(next->status);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        first_error_.Update(next->status);
        // Only now, so that Wait sees it until it is done, and under the lock:
        // ThreadSanitizer does not see the distribution's absl::Status count
        // its owners, and takes a later free by the caller for a race.
        pending_.pop();
      }
      changed_.notify_all();
    }
  }

  // Blocks for the next call, which stays in the queue; null once stopping and
  // all are done.
  Pending* Next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    return pending_.empty() ? nullptr : &pending_.front();
  }

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

AsyncCommunicator::AsyncCommunicator(Communicator& communicator)
    : worker_(std::make_unique<Worker>(communicator)) {}

AsyncCommunicator::~AsyncCommunicator() = default;

PendingCollective AsyncCommunicator::Start(const Collective& call) {
  return PendingCollective(worker_->Start(call));
}

absl::Status AsyncCommunicator::Wait() { return worker_->Wait(); }

}  // namespace lockstep
