#include "base/run_within.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace lockstep {

absl::Status RunWithin(absl::Duration timeout,
                       std::function<absl::Status()> fn) {
  struct Call {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<absl::Status> status;
  };
  const auto call = std::make_shared<Call>();
  std::thread thread([call, fn = std::move(fn)] {
    absl::Status status = fn();
    const std::lock_guard lock(call->mutex);
    call->status = std::move(status);
    call->ended.notify_one();
  });
  std::unique_lock lock(call->mutex);
  const bool in_time = call->ended.wait_for(
      lock, absl::ToChronoMilliseconds(std::min(timeout, absl::Hours(1000))),
      [&] { return call->status.has_value(); });
  if (!in_time) {
    thread.detach();
    return absl::DeadlineExceededError(
        absl::StrCat("not finished after ", absl::FormatDuration(timeout)));
  }
  absl::Status status = *std::move(call->status);
  lock.unlock();
  thread.join();
  return status;
}

}  // namespace lockstep
