#include "standin/queue.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/graph.h"
#include "standin/include/cuda_runtime.h"
#include "standin/include/device_code.h"
#include "standin/runtime.h"

struct CUevent_st {};  // Its address is the key of an EventState.

namespace lockstep::standin {
namespace {

constexpr int kGreatestPriority = -5;

cudaError_t WaitFor(DeviceLock& lock, const std::function<bool()>& ready) {
  Count(&CallCounts::host_waits);
  lock.WaitUntil(ready);
  return Record(TakeFault());
}

}  // namespace

cudaError_t Put(const DeviceLock& lock, cudaStream_t stream, MakeWork make) {
  CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  if (found->capture != nullptr) return RecordNode(*found, std::move(make));
  const cudaError_t error = CheckPut(*found);
  if (error == cudaSuccess) lock->Append(*found, make());
  return error;
}

cudaError_t Put(cudaStream_t stream, MakeWork make) {
  const DeviceLock lock;
  return Put(lock, stream, std::move(make));
}

cudaError_t PutKernel(cudaStream_t stream, MakeWork make) {
  if (DeviceOfStream(stream) != CurrentDevice()) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  return Put(stream, std::move(make));
}

bool IsStream(cudaStream_t stream) { return DeviceOfStream(stream) >= 0; }

int DeviceOfStream(cudaStream_t stream) {
  const DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  return found == nullptr ? -1 : found->device;
}

}  // namespace lockstep::standin

using lockstep::standin::CallCounts;
using lockstep::standin::CheckNotCaptured;
using lockstep::standin::CheckQuery;
using lockstep::standin::Count;
using lockstep::standin::CurrentDevice;
using lockstep::standin::DeviceLock;
using lockstep::standin::EventState;
using lockstep::standin::Put;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;
using lockstep::standin::WaitFor;
using lockstep::standin::WaitInCapture;

cudaError_t cudaDeviceSynchronize() {
  DeviceLock lock;
  for (const auto& each : lock->streams()) {
    if (each->capture != nullptr && each->device == CurrentDevice()) {
      const cudaError_t error = CheckQuery(*each);
      if (error != cudaSuccess) return error;
    }
  }
  Count(&CallCounts::host_waits);
  lock.WaitForDevice(CurrentDevice());
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
  if (made->priority == 0) Count(&CallCounts::ordinary_streams);
  const DeviceLock lock;
  lock->AddStream(std::move(made));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  *priority = found->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const DeviceLock lock;
  CUstream_st* const found = stream == nullptr ? nullptr : lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  if (found->capture != nullptr) return CheckQuery(*found);
  found->destroyed = true;
  lock->Release(*found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*found);
  if (error != cudaSuccess) return error;
  return WaitFor(lock, [&lock, stream]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                           lockstep::standin::device_mutex) {
    const CUstream_st* const found = lock->Find(stream);
    return found == nullptr || found->work.empty();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  DeviceLock lock;
  lock.BeginQuery();
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*found);
  if (error != cudaSuccess) return error;
  lock->Poll();
  if (!found->work.empty()) return cudaErrorNotReady;
  return Record(TakeFault());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = lock->Find(event);
  CUstream_st* const found = lock->Find(stream);
  if (found == nullptr || state == nullptr) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (flags != 0) return Record(cudaErrorInvalidValue);
  if (found->capture != nullptr || state->capture != nullptr) {
    return WaitInCapture(*found, *state);
  }
  if (lock->IsDropped(found->number, state->recorded_on)) return cudaSuccess;
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
  lock->AddEvent(*event, std::make_shared<EventState>(EventState{
                             .device = CurrentDevice(),
                             .timed = (flags & cudaEventDisableTiming) == 0}));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const DeviceLock lock;
  if (!lock->RemoveEvent(event)) return Record(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

namespace {

// Returns the work of recording an event.
lockstep::standin::MakeWork RecordsOf(std::shared_ptr<EventState> state) {
  return [state = std::move(state)] {
    return [state, record = ++state->recorded] {
      state->reached = record;
      state->time = std::chrono::steady_clock::now();
      return true;
    };
  };
}

}  // namespace

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = lock->Find(event);
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr || state == nullptr || found->device != state->device) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (found->capture != nullptr && found->capture->invalid) {
    return Record(cudaErrorStreamCaptureInvalidated);
  }
  state->recorded_on = found->number;
  state->capture = found->capture;
  state->captured = found->needs;
  if (found->capture != nullptr) return cudaSuccess;
  return Put(lock, stream, RecordsOf(state));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags) {
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  const DeviceLock lock;
  const std::shared_ptr<EventState> state = lock->Find(event);
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr || state == nullptr || found->device != state->device) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  if (flags != cudaEventRecordExternal || found->capture == nullptr) {
    return Record(cudaErrorInvalidValue);
  }
  state->recorded_on = found->number;
  return Put(lock, stream, RecordsOf(state));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  DeviceLock lock;
  const std::shared_ptr<EventState> state = lock->Find(event);
  if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*state);
  if (error != cudaSuccess) return error;
  return WaitFor(lock, [&] { return state->reached >= state->recorded; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  DeviceLock lock;
  lock.BeginQuery();
  const std::shared_ptr<EventState> state = lock->Find(event);
  if (state == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckQuery(*state);
  if (error != cudaSuccess) return error;
  lock->NoteQuery(*state);
  lock->Poll();
  if (state->reached < state->recorded) return cudaErrorNotReady;
  return Record(TakeFault());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  const DeviceLock lock;
  std::chrono::steady_clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    const auto state = lock->Find(i == 0 ? start : end);
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

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckNotCaptured(*found, cudaErrorNotSupported);
  if (error != cudaSuccess) return error;
  return Put(lock, stream, lockstep::standin::ReplaysOf(executable));
}
