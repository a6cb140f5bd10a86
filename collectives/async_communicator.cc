#include "collectives/async_communicator.h"

#include <future>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "collectives/collective.h"

namespace lockstep {

AsyncCommunicator::~AsyncCommunicator() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

PendingCollective AsyncCommunicator::Start(const Collective& call) {
  std::promise<absl::Status> promise;
  std::shared_future<absl::Status> result = promise.get_future().share();
  {
    const MutexLock lock(mutex_);
    pending_.push({call, std::move(promise), absl::OkStatus()});
  }
  changed_.NotifyAll();
  return PendingCollective(std::move(result));
}

absl::Status AsyncCommunicator::Wait() {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pending_.empty();
  });
  return std::exchange(first_error_, absl::OkStatus());
}

void AsyncCommunicator::Work() {
  while (Pending* const next = Next()) {
    next->status = communicator_.Run(next->call);
    if (next->status.ok()) next->status = communicator_.Wait();
    next->result.set_value(next->status);
    {
      const MutexLock lock(mutex_);
      first_error_.Update(next->status);
      // Pops the call only when it is done, so that Wait blocks until then.
      // Pops under the lock, because ThreadSanitizer does not see how the
      // distribution's absl::Status counts its owners. It would report a later
      // free by the caller as a race.
      pending_.pop();
    }
    changed_.NotifyAll();
  }
}

// Blocks for the next call, which stays in the queue. Returns null once
// stopping_ is set and all calls are done.
AsyncCommunicator::Pending* AsyncCommunicator::Next() {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !pending_.empty();
  });
  return pending_.empty() ? nullptr : &pending_.front();
}

}  // namespace lockstep
