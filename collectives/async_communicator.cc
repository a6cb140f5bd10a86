#include "collectives/async_communicator.h"

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/pending_collective.h"

namespace lockstep {

namespace {

// A call on the thread of an AsyncCommunicator.
class OnThread : public PendingCollective::Progress {
 public:
  explicit OnThread(std::shared_future<absl::Status> result)
      : result_(std::move(result)) {}
  absl::Status Wait() override { return result_.get(); }
  bool done() override {
    return result_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }

 private:
  const std::shared_future<absl::Status> result_;
};

}  // namespace

AsyncCommunicator::AsyncCommunicator(Communicator& communicator)
    : communicator_(communicator) {
  if (!communicator.enqueues()) thread_ = std::thread([this] { Work(); });
}

AsyncCommunicator::~AsyncCommunicator() {
  if (!thread_.joinable()) {
    static_cast<void>(Wait());
    return;
  }
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

PendingCollective AsyncCommunicator::Start(const Collective& call) {
  if (!thread_.joinable()) {
    enqueued_.push_back(communicator_.Start(call));
    return enqueued_.back();
  }
  std::promise<absl::Status> promise;
  const auto result = std::make_shared<OnThread>(promise.get_future().share());
  {
    const MutexLock lock(mutex_);
    pending_.push({call, std::move(promise), absl::OkStatus()});
  }
  changed_.NotifyAll();
  return PendingCollective(result);
}

absl::Status AsyncCommunicator::Wait() {
  for (const PendingCollective& each : std::exchange(enqueued_, {})) {
    const absl::Status status = each.Wait();
    const MutexLock lock(mutex_);
    first_error_.Update(status);
  }
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
