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
  int priority = 0;        // Less is more urgent.
  bool destroyed = false;  // Goes once its work is done.
  size_t released = 0;     // How many pieces of its work may run.
  std::chrono::steady_clock::time_point last_put = {};
  std::deque<lockstep::standin::Work> work = {};
};

struct CUevent_st {};  // Its address names an EventState.

namespace lockstep::standin {
namespace {

constexpr int kGreatestPriority = -5;

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
  int64_t polls = 0;
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

// In the order in which they run what they can.
std::vector<CUstream_st*> InOrder() {
  std::vector<CUstream_st*> streams;
  for (const auto& stream : All().streams) streams.push_back(stream.get());
  if (All().schedule.order == Order::kNewestStreamFirst) {
    std::ranges::reverse(streams);
  }
  std::ranges::stable_sort(streams, {}, &CUstream_st::priority);
  return streams;
}

// Runs the first stream that has something to run.
bool RunOnce() {
  std::erase_if(All().streams, [](auto& stream) {
    return stream->destroyed && stream->work.empty();
  });
  return std::ranges::any_of(
      InOrder(), [](CUstream_st* stream) { return RunFront(*stream); });
}

// A thread asks: the work of its streams may run, and what was held back for so
// long that its owner seems to leave the asking to others.
void Ask(const DeviceLock& lock) {
  constexpr auto kHeldBackAtMost = std::chrono::seconds(1);
  ++All().polls;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& stream : All().streams) {
    if (stream->owner == std::this_thread::get_id() ||
        now - stream->last_put > kHeldBackAtMost) {
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
  NoteHostWait();
  DeviceLock lock;
  WaitUntil(lock, ready);
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

void DeviceLock::Yield() {
  All().done.wait_for(lock_, std::chrono::milliseconds(1));
}

void RunWork(const DeviceLock&) {
  while (RunOnce()) All().done.notify_all();
}

void Release(const DeviceLock& lock, cudaStream_t stream) {
  CUstream_st* const found = Find(stream);
  if (found == nullptr) return;
  found->released = found->work.size();
  RunWork(lock);
}

bool WaitUntil(DeviceLock& lock, const std::function<bool()>& ready,
               std::chrono::milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  Ask(lock);
  while (!ready()) {
    if (std::chrono::steady_clock::now() - start > limit) return false;
    lock.Yield();
    Ask(lock);
  }
  return true;
}

int64_t Polls() { return All().polls; }

void NoteProgress() { All().progressed = true; }

void Enqueue(const DeviceLock& lock, cudaStream_t stream, Work work) {
  CUstream_st* const found = Find(stream);
  if (found == nullptr) return;
  found->work.push_back(std::move(work));
  found->last_put = std::chrono::steady_clock::now();
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
using lockstep::standin::Ask;
using lockstep::standin::DeviceLock;
using lockstep::standin::EventState;
using lockstep::standin::Find;
using lockstep::standin::FindEvent;
using lockstep::standin::IsDropped;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;
using lockstep::standin::WaitFor;

cudaError_t cudaDeviceSynchronize() {
  return WaitFor([] {
    return std::ranges::all_of(
        All().streams, [](const auto& each) { return each->work.empty(); });
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = lockstep::standin::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int priority) {
  if (flags > cudaStreamNonBlocking) return Record(cudaErrorInvalidValue);
  auto made = std::make_unique<CUstream_st>();
  *stream = made.get();
  made->owner = std::this_thread::get_id();
  made->priority =
      std::clamp(priority, lockstep::standin::kGreatestPriority, 0);
  const DeviceLock lock;
  made->number = ++All().streams_made;
  All().streams.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const DeviceLock lock;
  const CUstream_st* const found = Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  *priority = found->priority;
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
    Ask(lock);
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
    Ask(lock);
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
