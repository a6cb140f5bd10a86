// The stand-in's device, memory, streams and events.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "tools/cuda/standin/errors.h"
#include "tools/cuda/standin/include/cuda_runtime.h"

struct CUstream_st {};

struct CUevent_st {
  bool timed;
  bool recorded = false;
  std::chrono::steady_clock::time_point time = {};
};

namespace lockstep::standin {
namespace {

std::mutex mutex;  // Guards Live().

// What exists now. Never destroyed, since other destructors may free memory.
struct Objects {
  std::map<uintptr_t, size_t> memory;  // Address to bytes.
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
};

Objects& Live() {
  static Objects& objects = *new Objects;
  return objects;
}

bool IsEvent(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  return Live().events.count(event) > 0;
}

// Whether the range lies in one piece of device memory.
bool IsDeviceRange(const void* pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex);
  auto after = Live().memory.upper_bound(address);
  if (after == Live().memory.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return address - start <= size && bytes <= size - (address - start);
}

cudaError_t CheckCopy(const void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind) {
  const bool to_device =
      kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device =
      kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device && !IsDeviceRange(to, bytes)) return cudaErrorInvalidValue;
  if (from_device && !IsDeviceRange(from, bytes)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace

bool IsStream(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return stream == nullptr || Live().streams.count(stream) > 0;
}

}  // namespace lockstep::standin

using lockstep::standin::IsDeviceRange;
using lockstep::standin::IsEvent;
using lockstep::standin::IsStream;
using lockstep::standin::Live;
using lockstep::standin::mutex;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return Record(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  using namespace lockstep::standin;
  if (device != 0) return Record(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "stand-in");
  properties->totalGlobalMem = size_t{1} << 30;
  properties->sharedMemPerBlock = kMaxSharedBytes;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = kMaxThreadsPerBlock;
  properties->maxThreadsDim[0] = kMaxThreadsPerBlock;
  properties->maxThreadsDim[1] = kMaxThreadsPerBlock;
  properties->maxThreadsDim[2] = kMaxBlockZ;
  properties->maxGridSize[0] = kMaxGridX;
  properties->maxGridSize[1] = kMaxGridYz;
  properties->maxGridSize[2] = kMaxGridYz;
  properties->major = 8;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
  }
  return Record(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize() { return Record(TakeFault()); }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(pointer, 256, bytes) != 0) {
    *pointer = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, 0xff, bytes);
  const std::lock_guard lock(mutex);
  Live().memory[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard lock(mutex);
    if (Live().memory.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) {
      return Record(cudaErrorInvalidValue);
    }
  }
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const cudaError_t error = lockstep::standin::CheckCopy(to, from, bytes, kind);
  if (error != cudaSuccess) return Record(error);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  const cudaError_t fault = Record(TakeFault());
  if (fault != cudaSuccess) return fault;
  return cudaMemcpyAsync(to, from, bytes, kind);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!IsDeviceRange(to, bytes)) return Record(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags > cudaStreamNonBlocking) return Record(cudaErrorInvalidValue);
  *stream = new CUstream_st;
  const std::lock_guard lock(mutex);
  Live().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(mutex);
    if (Live().streams.erase(stream) == 0) {
      return Record(cudaErrorInvalidResourceHandle);
    }
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  return Record(TakeFault());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  if (!IsStream(stream) || !IsEvent(event)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  return Record(flags == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if ((flags & ~cudaEventDisableTiming) != 0) {
    return Record(cudaErrorInvalidValue);
  }
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0};
  const std::lock_guard lock(mutex);
  Live().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  {
    const std::lock_guard lock(mutex);
    if (Live().events.erase(event) == 0) {
      return Record(cudaErrorInvalidResourceHandle);
    }
  }
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!IsStream(stream) || !IsEvent(event)) {
    return Record(cudaErrorInvalidResourceHandle);
  }
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!IsEvent(event)) return Record(cudaErrorInvalidResourceHandle);
  return Record(TakeFault());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end}) {
    if (!IsEvent(event) || !event->timed || !event->recorded) {
      return Record(cudaErrorInvalidResourceHandle);
    }
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}
