#include "collectives/nccl/call_poller.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// The pause between queries of a call for which no thread waits.
constexpr std::chrono::milliseconds kPause(1);

// How long the destructor waits for the query in progress.
constexpr std::chrono::milliseconds kQueryEnds(500);

// How long a thread that polls only yields, and how long it sleeps later.
constexpr std::chrono::microseconds kYields(200);
constexpr std::chrono::microseconds kSleeps(50);

int64_t Now() {
  return std::chrono::steady_clock::now().time_since_epoch() /
         std::chrono::nanoseconds(1);
}

// Returns whether the event has completed. Errors: CudaStatus of any error
// other than cudaErrorNotReady.
absl::StatusOr<bool> HasCompleted(const Event& event) {
  const cudaError_t error = cudaEventQuery(event.get());
  if (error == cudaErrorNotReady) return false;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
  return true;
}

}  // namespace

absl::Status UseDeviceBesideCaptures(int device) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  return CudaStatus(cudaThreadExchangeStreamCaptureMode(&mode),
                    "cudaThreadExchangeStreamCaptureMode");
}

void PollPauses::Pause() {
  const auto now = std::chrono::steady_clock::now();
  if (!first_.has_value()) first_ = now;
  if (now - *first_ < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kSleeps);
  }
}

struct CallPoller::State {
  struct Call {
    int64_t number = 0;
    std::shared_ptr<const CallEvents> events;
  };

  // The number of the last call that has started, and of the last that ended.
  std::atomic<int64_t> started = -1;
  std::atomic<int64_t> done = -1;
  // When the query in progress began, as Now(); 0 if there is none.
  std::atomic<int64_t> query_began = 0;

  Mutex mutex;              // Never held during a call of CUDA.
  ConditionVariable wake;   // Wakes the thread: a new call, Hurry, or the end.
  ConditionVariable ended;  // Wakes the destructor.
  // The calls that have not ended.
  std::deque<Call> calls ABSL_GUARDED_BY(mutex);
  // The last call that a thread waits for.
  int64_t awaited ABSL_GUARDED_BY(mutex) = -1;
  absl::Status error ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool has_ended ABSL_GUARDED_BY(mutex) = false;

  // Runs as the thread.
  void Run(int device) {
    absl::Status status =
        Ask([device] { return UseDeviceBesideCaptures(device); });
    if (status.ok()) status = PollCalls();
    const MutexLock lock(mutex);
    error = std::move(status);
    has_ended = true;
    ended.NotifyAll();
  }

  // Tells the thread to end. Returns whether the thread has ended in time.
  bool Stop() {
    MutexLock lock(mutex);
    stopping = true;
    wake.NotifyOne();
    return ended.WaitFor(
        lock, kQueryEnds,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return has_ended; });
  }

  // Polls the oldest call until it has ended, and then the next one.
  absl::Status PollCalls() {
    while (const std::optional<Call> call = Oldest()) {
      PollPauses pauses;
      LOCKSTEP_RETURN_IF_ERROR(Ask([&] { return Poll(*call); }));
      while (done != call->number && PauseBeforeQuery(call->number, pauses)) {
        LOCKSTEP_RETURN_IF_ERROR(Ask([&] { return Poll(*call); }));
      }
      const MutexLock lock(mutex);
      if (done == call->number) calls.pop_front();
    }
    return absl::OkStatus();
  }

  // Pauses before the next query of a call. Returns false once the thread
  // should end.
  bool PauseBeforeQuery(int64_t number, PollPauses& pauses) {
    bool hurries = false;
    {
      MutexLock lock(mutex);
      hurries = wake.WaitFor(
          lock, kPause, [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
            return stopping || awaited >= number;
          });
      if (stopping) return false;
    }
    if (hurries) pauses.Pause();
    return true;
  }

  // Waits for a call. Returns nullopt once the thread should end.
  std::optional<Call> Oldest() {
    MutexLock lock(mutex);
    wake.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return stopping || !calls.empty();
    });
    if (stopping) return std::nullopt;
    return calls.front();
  }

  absl::Status Poll(const Call& call) {
    if (started < call.number) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool has_started,
                                HasCompleted(call.events->started));
      if (!has_started) return absl::OkStatus();
      started = call.number;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const bool is_done,
                              HasCompleted(call.events->done));
    if (is_done) done = call.number;
    return absl::OkStatus();
  }

  // Calls CUDA, and notes since when.
  template <typename Query>
  absl::Status Ask(Query query) {
    query_began = Now();
    absl::Status status = query();
    query_began = 0;
    return status;
  }
};

CallPoller::CallPoller(int device)
    : state_(std::make_shared<State>()),
      thread_([state = state_, device] { state->Run(device); }) {}

CallPoller::~CallPoller() {
  if (state_->Stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void CallPoller::Add(int64_t number, std::shared_ptr<const CallEvents> events) {
  const MutexLock lock(state_->mutex);
  state_->calls.push_back({number, std::move(events)});
  state_->wake.NotifyOne();
}

void CallPoller::Hurry(int64_t number) {
  const MutexLock lock(state_->mutex);
  state_->awaited = number;
  state_->wake.NotifyOne();
}

bool CallPoller::HasStarted(int64_t number) const {
  return state_->started >= number;
}

bool CallPoller::IsDone(int64_t number) const { return state_->done >= number; }

absl::Duration CallPoller::Unanswered() const {
  const int64_t began = state_->query_began;
  return began == 0 ? absl::ZeroDuration() : absl::Nanoseconds(Now() - began);
}

absl::Status CallPoller::error() const {
  const MutexLock lock(state_->mutex);
  return state_->error;
}

}  // namespace lockstep
