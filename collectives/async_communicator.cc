#include "collectives/async_communicator.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "collectives/buffer.h"
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

  void Start(Buffer data) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pending_.push(data);
    }
    changed_.notify_all();
  }

  absl::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return pending_.empty(); });
    return std::exchange(first_error_, absl::OkStatus());
  }

 private:
  void Work() {
    while (const std::optional<Buffer> data = Next()) {
      absl::Status status = communicator_.AllReduceSum(*data);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        first_error_.Update(std::move(status));
        pending_.pop();  // Only now, so that Wait sees it until it is done.
      }
      changed_.notify_all();
    }
  }

  // Blocks for the next call; none once stopping and all are done.
  std::optional<Buffer> Next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    if (pending_.empty()) return std::nullopt;
    return pending_.front();
  }

  Communicator& communicator_;
  // Not absl::Mutex: ThreadSanitizer does not see into the distribution's
  // build of it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Buffer> pending_;  // Started and not done, guarded by mutex_.
  absl::Status first_error_;    // Guarded by mutex_.
  bool stopping_ = false;       // Guarded by mutex_.
  std::thread thread_;          // Last: it uses all the others.
};

AsyncCommunicator::AsyncCommunicator(Communicator& communicator)
    : worker_(std::make_unique<Worker>(communicator)) {}

AsyncCommunicator::~AsyncCommunicator() = default;

void AsyncCommunicator::StartAllReduceSum(Buffer data) { worker_->Start(data); }

absl::Status AsyncCommunicator::Wait() { return worker_->Wait(); }

}  // namespace lockstep
