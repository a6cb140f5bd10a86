// Streams and events of the stand-in runtime, and the work on them.
#include "tools/cuda/standin/queue.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/device_code.h"
#include "tools/cuda/standin/include/cuda_runtime.h"

struct CUstream_st {
  int64_t number = 0;  // The default stream's; others count up.
  std::thread::id owner = {};
  bool destroyed = false;  // Goes once its work is done.
  size_t released = 0;     // How many pieces of its work may run.
  std::deque<lockstep::standin::Work> work = {};
};

struct CUevent_st {};  // Its address names an EventState.

namespace lockstep::standin {
namespace {

// Outlives its handle while work on a stream names it.
struct EventState {
  bool timed = false;
  int64_t recorded = 0;     // How often cudaEventRecord was called.
  int64_t recorded_on = 0;  // The number of the last record's stream.
  int64_t reached = 0;      // Which of these records the work has come past.
  std::chrono::steady_clock::time_point time = {};
};

// Never destroyed, since other destructors may use streams.
struct Queues {
  Queues() { streams.push_back(std::make_unique<CUstream_st>()); }

  std::mutex mutex;
  std::condition_variable done;  // Some work was.
  Schedule schedule;
  bool progressed = false;  // In the run that is under way.
  int64_t streams_made = 0;
  std::vector<std::unique_ptr<CUstream_st>> streams;  // The oldest first.
  std::map<cudaEvent_t, std::shared_ptr<EventState>> events;
};

Queues& All() {
  static Queues& queues = *new Queues;
  return queues;
}

// Null if there is no such stream.
CUstream_st* Find(cudaStream_t stream) {
  if (stream == nullptr) return All().streams.front().get();
  for (const auto& each : All().streams) {
    if (each.get() == stream) return each->destroyed ? nullptr : stream;
  }
  return nullptr;
}

bool RunFront(CUstream_st& stream) {
  All().progressed = false;
  while (stream.released > 0 && stream.work.front()()) {
    stream.work.pop_front();
    --stream.released;
    All().progressed = true;
  }
  return All().progressed;
}

// Runs the first stream that has something to run.
bool RunOnce() {
  Queues& all = All();
  std::erase_if(all.streams, [](auto& stream) {
    return stream->destroyed && stream->work.empty();
  });
  const size_t size = all.streams.size();
  for (size_t i = 0; i < size; ++i) {
    const bool newest_first = all.schedule.order == Order::kNewestStreamFirst;
    if (RunFront(*all.streams[newest_first ? size - 1 - i : i])) return true;
  }
  return false;
}

// Lets the work of this thread's streams run.
void Release(const DeviceLock& lock) {
  for (const auto& stream : All().streams) {
    if (stream->owner == std::this_thread::get_id()) {
      stream->released = stream->work.size();
    }
  }
  RunWork(lock);
}

std::shared_ptr<EventState> FindEvent(cudaEvent_t event) {
  const auto found = All().events.find(event);
  return found == All().events.end() ? nullptr : found->second;
}

cudaError_t WaitFor(const std::function<bool()>& ready) {
  Release(DeviceLock());
  {
    std::unique_lock lock(All().mutex);
    All().done.wait(lock, ready);
  }
  return Record(TakeFault());
}

bool IsDropped(const CUstream_st& stream, const EventState& event) {
  switch (All().schedule.dropped_waits) {
    case DroppedWaits::kOfOlderStreams:
      return stream.number < event.recorded_on;
    case DroppedWaits::kOfNewerStreams:
      return stream.number > event.recorded_on;
    case DroppedWaits::kNone:
      break;
  }
  return false;
}

}  // namespace

DeviceLock::DeviceLock() : lock_(All().mutex) {}

void RunWork(const DeviceLock&) {
  while (RunOnce()) {
  }
  All().done.notify_all();
}

void NoteProgress() { All().progressed = true; }

void Enqueue(const DeviceLock& lock, cudaStream_t stream, Work work) {
  CUstream_st* const found = Find(stream);
  if (found == nullptr) return;
  found->work.push_back(std::move(work));
  if (stream != nullptr && All().schedule.order != Order::kAtOnce) return;
  found->released = found->work.size();
  RunWork(lock);
}

void SetSchedule(const Schedule& schedule) {
  const DeviceLock lock;
  All().schedule = schedule;
}

void Enqueue(cudaStream_t stream, Work work) {
  Enqueue(DeviceLock(), stream, std::move(work));
}

bool IsStream(cudaStream_t stream) {
  const DeviceLock lock;
  return Find(stream) != nullptr;
}

}  // namespace lockstep::standin

using lockstep::standin::All;
using lockstep::standin::DeviceLock;
using lockstep::standin::EventState;
using lockstep::standin::Find;
using lockstep::standin::FindEvent;
using lockstep::standin::IsDropped;
using lockstep::standin::Record;
using lockstep::standin::Release;
using lockstep::standin::TakeFault;
using lockstep::standin::WaitFor;

cudaError_t cudaDeviceSynchronize() {
  return WaitFor([] {
    return std::ranges::all_of(
        All().streams, [](const auto& each) { return each->work.empty(); });
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags > cudaStreamNonBlocking) return Record(cudaErrorInvalidValue);
  auto made = std::make_unique<CUstream_st>();
  *stream = made.get();
  made->owner = std::this_thread::get_id();
  const DeviceLock lock;
  made->number = ++All().streams_made;
  All().streams.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const DeviceLock lock;
  CUstream_st* const found = stream == nullptr ? nullptr : Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  found->destroyed = true;
  found->released = found->work.size();
  RunWork(lock);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!lockstep::standin::IsStream(stream)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  return WaitFor([stream] {
    const CUstream_st* const found = Find(stream);
    return found == nullptr || found->work.empty();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  {
    const DeviceLock lock;
    const CUstream_st* const found = Find(stream);
    if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
    Release(lock);
    if (!found->work.empty()) return cudaErrorNotReady;
  }
  return Record(TakeFault());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = FindEvent(event);
  const CUstream_st* const found = Find(stream);
  if (found == nullptr || state == nullptr) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (flags != 0) return Record(cudaErrorInvalidValue);
  if (IsDropped(*found, *state)) return cudaSuccess;
  Enqueue(lock, stream, [state, record = state->recorded] {
    return state->reached >= record;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & ~cudaEventDisableTiming) != 0) {
    return Record(cudaErrorInvalidValue);
  }
  *event = new CUevent_st;
  const DeviceLock lock;
  All().events[*event] = std::make_shared<EventState>(
      EventState{.timed = (flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const DeviceLock lock;
  if (All().events.erase(event) == 0) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = FindEvent(event);
  const CUstream_st* const found = Find(stream);
  if (found == nullptr || state == nullptr) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  state->recorded_on = found->number;
  Enqueue(lock, stream, [state, record = ++state->recorded] {
    state->reached = record;
    state->time = std::chrono::steady_clock::now();
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<EventState> state;
  {
    const DeviceLock lock;
    state = FindEvent(event);
  }
  if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
  return WaitFor([&state] { return state->reached >= state->recorded; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  {
    const DeviceLock lock;
    const std::shared_ptr<EventState> state = FindEvent(event);
    if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
    Release(lock);
    if (state->reached < state->recorded) return cudaErrorNotReady;
  }
  return Record(TakeFault());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  const DeviceLock lock;
  std::chrono::steady_clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    const auto state = FindEvent(i == 0 ? start : end);
    if (state == nullptr || !state->timed || state->recorded == 0) {
      return Record(cudaErrorInvalidResourceHandle);
    }
    if (state->reached < state->recorded) return cudaErrorNotReady;
    times[i] = state->time;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
  return cudaSuccess;
}
