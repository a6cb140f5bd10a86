// The streams and events of the stand-in runtime, and the work on them.
#include "standin/queue.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "standin/control.h"
#include "standin/device_code.h"
#include "standin/include/cuda_runtime.h"
#include "standin/runtime.h"
#include "standin/streams.h"

struct CUevent_st {};  // Its address is the key of an EventState.

namespace lockstep::standin {
namespace {

constexpr int kGreatestPriority = -5;

// Returns whether the stream's next item must wait for an earlier item. A
// blocking stream waits for the default stream of its device. The default
// stream waits for all blocking streams of its device.
bool WaitsForDefaultStream(const CUstream_st& stream) {
  const bool is_default = stream.number == 0;
  if (!is_default && !stream.blocking) return false;
  return std::ranges::any_of(All().streams, [&](const auto& other) {
    return other->device == stream.device && !other->work.empty() &&
           (is_default ? other->blocking : other->number == 0) &&
           other->work.front().number < stream.work.front().number;
  });
}

bool RunFront(CUstream_st& stream) {
  All().progressed = false;
  while (stream.released > 0 && !WaitsForDefaultStream(stream) &&
         stream.work.front().work()) {
    stream.work.pop_front();
    --stream.released;
    All().progressed = true;
  }
  return All().progressed;
}

// Returns the streams in the order in which they run their work.
std::vector<CUstream_st*> StreamsInRunOrder() {
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
  return std::ranges::any_of(StreamsInRunOrder(), [](CUstream_st* stream) {
    return RunFront(*stream);
  });
}

// Handles a query by this thread: the work of its streams and of its device's
// default stream may run. Work of other threads' streams may run too, if
// nothing was put on the stream for a second: the stream's thread may not query
// it at all.
void PollStreams(const DeviceLock& lock) {
  constexpr auto kHeldBackAtMost = std::chrono::seconds(1);
  ++All().polls;
  const auto now = std::chrono::steady_clock::now();
  const int device = CurrentDevice();
  for (const auto& stream : All().streams) {
    const bool mine = stream->number == 0
                          ? stream->device == device
                          : stream->owner == std::this_thread::get_id();
    if (mine || now - stream->last_put > kHeldBackAtMost) {
      stream->released = stream->work.size();
    }
  }
  RunWork(lock);
}

std::shared_ptr<EventState> FindEvent(cudaEvent_t event) {
  const auto found = All().events.find(event);
  return found == All().events.end() ? nullptr : found->second;
}

cudaError_t WaitFor(DeviceLock& lock, const std::function<bool()>& ready) {
  NoteHostWait();
  WaitUntil(lock, ready);
  return Record(TakeFault());
}

}  // namespace

Queues& All() {
  static Queues& queues = *new Queues;
  return queues;
}

CUstream_st* Find(cudaStream_t stream) {
  auto& streams = All().streams;
  const int device = stream == nullptr ? CurrentDevice() : 0;
  for (const auto& each : streams) {
    if (stream == nullptr ? each->number == 0 && each->device == device
                          : each.get() == stream) {
      return each->destroyed ? nullptr : each.get();
    }
  }
  if (stream != nullptr) return nullptr;
  streams.insert(streams.begin(), std::make_unique<CUstream_st>());
  streams.front()->device = device;
  return streams.front().get();
}

bool IsDropped(int64_t waited_for_on, int64_t recorded_on) {
  switch (All().schedule.dropped_waits) {
    case DroppedWaits::kOfOlderStreams:
      return waited_for_on < recorded_on;
    case DroppedWaits::kOfNewerStreams:
      return waited_for_on > recorded_on;
    case DroppedWaits::kNone:
      break;
  }
  return false;
}

DeviceLock::DeviceLock() : lock_(All().mutex) {}

void DeviceLock::Yield() {
  All().done.wait_for(lock_, std::chrono::milliseconds(1));
}

void RunWork(const DeviceLock&) {
  while (RunOnce()) All().done.notify_all();
}

void ReleaseStream(const DeviceLock& lock, cudaStream_t stream) {
  CUstream_st* const found = Find(stream);
  if (found == nullptr) return;
  found->released = found->work.size();
  RunWork(lock);
}

bool WaitUntil(DeviceLock& lock, const std::function<bool()>& ready,
               std::chrono::milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  PollStreams(lock);
  while (!ready()) {
    if (std::chrono::steady_clock::now() - start > limit) return false;
    lock.Yield();
    PollStreams(lock);
  }
  return true;
}

bool WaitForDevice(DeviceLock& lock, int device,
                   std::chrono::milliseconds limit) {
  for (const auto& each : All().streams) {
    if (each->device == device) each->released = each->work.size();
  }
  return WaitUntil(
      lock,
      [device] {
        return std::ranges::all_of(All().streams, [device](const auto& each) {
          return each->device != device || each->work.empty();
        });
      },
      limit);
}

int64_t Polls() { return All().polls; }

void NoteProgress() { All().progressed = true; }

cudaError_t Put(const DeviceLock& lock, cudaStream_t stream, MakeWork make) {
  CUstream_st* const found = Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  if (found->capture != nullptr) return RecordNode(*found, std::move(make));
  const cudaError_t error = CheckPut(*found);
  if (error != cudaSuccess) return error;
  found->work.push_back({++All().items, make()});
  found->last_put = std::chrono::steady_clock::now();
  if (All().schedule.order == Order::kAtOnce) ReleaseStream(lock, stream);
  return cudaSuccess;
}

cudaError_t Put(cudaStream_t stream, MakeWork make) {
  return Put(DeviceLock(), stream, std::move(make));
}

bool ShouldDropMemoryWait(int device) {
  return All().memory_waits[device]++ == All().schedule.dropped_memory_wait;
}

void SetSchedule(const Schedule& schedule) {
  const DeviceLock lock;
  All().schedule = schedule;
  All().memory_waits.clear();
}

bool IsStream(cudaStream_t stream) {
  const DeviceLock lock;
  return Find(stream) != nullptr;
}

cudaError_t CheckUnsafeCall() {
  const DeviceLock lock;
  return CheckUnsafe();
}

}  // namespace lockstep::standin

using lockstep::standin::All;
using lockstep::standin::CheckQuery;
using lockstep::standin::CurrentDevice;
using lockstep::standin::DeviceLock;
using lockstep::standin::EventState;
using lockstep::standin::Find;
using lockstep::standin::FindEvent;
using lockstep::standin::IsDropped;
using lockstep::standin::NoteHostWait;
using lockstep::standin::PollStreams;
using lockstep::standin::Put;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;
using lockstep::standin::WaitFor;
using lockstep::standin::WaitForDevice;
using lockstep::standin::WaitInCapture;

cudaError_t cudaDeviceSynchronize() {
  DeviceLock lock;
  for (const auto& each : All().streams) {
    if (each->capture != nullptr && each->device == CurrentDevice()) {
      const cudaError_t error = CheckQuery(*each);
      if (error != cudaSuccess) return error;
    }
  }
  NoteHostWait();
  WaitForDevice(lock, CurrentDevice());
  return Record(TakeFault());
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
  made->device = CurrentDevice();
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
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
  if (found->capture != nullptr) return CheckQuery(*found);
  found->destroyed = true;
  found->released = found->work.size();
  RunWork(lock);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  DeviceLock lock;
  const CUstream_st* const found = Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*found);
  if (error != cudaSuccess) return error;
  return WaitFor(lock, [stream] {
    const CUstream_st* const found = Find(stream);
    return found == nullptr || found->work.empty();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const DeviceLock lock;
  const CUstream_st* const found = Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*found);
  if (error != cudaSuccess) return error;
  PollStreams(lock);
  if (!found->work.empty()) return cudaErrorNotReady;
  return Record(TakeFault());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = FindEvent(event);
  CUstream_st* const found = Find(stream);
  if (found == nullptr || state == nullptr) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (flags != 0) return Record(cudaErrorInvalidValue);
  if (found->capture != nullptr || state->capture != nullptr) {
    return WaitInCapture(*found, *state);
  }
  if (IsDropped(found->number, state->recorded_on)) return cudaSuccess;
  return Put(lock, stream, [state, record = state->recorded] {
    return [state, record] { return state->reached >= record; };
  });
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
  if (found->capture != nullptr && found->capture->invalid) {
    return Record(cudaErrorStreamCaptureInvalidated);
  }
  state->recorded_on = found->number;
  state->capture = found->capture;
  state->captured = found->needs;
  if (found->capture != nullptr) return cudaSuccess;
  return Put(lock, stream, [state, record = ++state->recorded] {
    return [state, record] {
      state->reached = record;
      state->time = std::chrono::steady_clock::now();
      return true;
    };
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  DeviceLock lock;
  const std::shared_ptr<EventState> state = FindEvent(event);
  if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*state);
  if (error != cudaSuccess) return error;
  return WaitFor(lock, [&] { return state->reached >= state->recorded; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = FindEvent(event);
  if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*state);
  if (error != cudaSuccess) return error;
  PollStreams(lock);
  if (state->reached < state->recorded) return cudaErrorNotReady;
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
