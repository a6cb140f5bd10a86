// The stand-in's devices, memory and errors.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "standin/control.h"
#include "standin/device_code.h"
#include "standin/include/cuda_runtime.h"
#include "standin/queue.h"

namespace lockstep::standin {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;

std::mutex fault_mutex;  // Guards fault_pending and Fault().
bool fault_pending = false;

std::string& Fault() {
  static std::string& fault = *new std::string;
  return fault;
}

struct Description {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr Description kDescriptions[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "driver too old for the CUDA runtime"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice",
     "invalid device ordinal"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure",
     "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking "
     "stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another "
     "thread"},
};

Description Describe(cudaError_t error) {
  for (const Description& each : kDescriptions) {
    if (each.error == error) return each;
  }
  return {error, "unrecognized error code", "unrecognized error code"};
}

std::mutex count_mutex;  // Guards the counts of all threads.
CallCounts counts;
int64_t resets = 0;
struct ThreadCounts {
  CallCounts counts;
  int64_t resets = 0;  // The number of resets before it.
};
thread_local ThreadCounts thread_counts;

CallCounts& CurrentThreadCounts() {
  if (thread_counts.resets != resets) {
    thread_counts = {.counts = {}, .resets = resets};
  }
  return thread_counts.counts;
}

void Note(int64_t CallCounts::*member) {
  const std::lock_guard lock(count_mutex);
  ++(counts.*member);
  ++(CurrentThreadCounts().*member);
}

std::atomic<int> device_count = 1;
constinit thread_local int current_device = 0;

std::mutex memory_mutex;  // Guards Memory(), WindowMemory(), PinnedMemory().

struct Allocation {
  size_t bytes = 0;
  int device = 0;
};

// Allocations by address. Never destroyed, because destructors of static
// objects may free memory.
using AllocationMap = std::map<uintptr_t, Allocation>;
AllocationMap& Memory() {
  static AllocationMap& memory = *new AllocationMap;
  return memory;
}
AllocationMap& WindowMemory() {
  static AllocationMap& memory = *new AllocationMap;
  return memory;
}
AllocationMap& PinnedMemory() {
  static AllocationMap& memory = *new AllocationMap;
  return memory;
}

// Returns the allocation that contains the range.
std::optional<Allocation> FindAllocation(const AllocationMap& pieces,
                                         const void* pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(memory_mutex);
  const auto after = pieces.upper_bound(address);
  if (after == pieces.begin()) return std::nullopt;
  const auto& [start, piece] = *std::prev(after);
  const bool is_in = address - start <= piece.bytes &&
                     bytes <= piece.bytes - (address - start);
  return is_in ? std::optional(piece) : std::nullopt;
}

std::optional<Allocation> FindDeviceAllocation(const void* pointer,
                                               size_t bytes) {
  const std::optional<Allocation> piece =
      FindAllocation(Memory(), pointer, bytes);
  return piece.has_value() ? piece
                           : FindAllocation(WindowMemory(), pointer, bytes);
}

bool IsIn(const AllocationMap& pieces, const void* pointer, size_t bytes) {
  return FindAllocation(pieces, pointer, bytes).has_value();
}

// Allocates memory and records it in `owner`.
cudaError_t AllocateTracked(void** pointer, size_t bytes,
                            AllocationMap& owner) {
  *pointer = nullptr;
  const cudaError_t error = CheckUnsafeCall();
  if (error != cudaSuccess || bytes == 0) return error;
  const size_t alignment = &owner == &WindowMemory() ? 4096 : 256;
  if (posix_memalign(pointer, alignment, bytes) != 0) {
    *pointer = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, 0xff, bytes);
  const std::lock_guard lock(memory_mutex);
  owner[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, current_device};
  return cudaSuccess;
}

// How long freeing memory waits for a device. CUDA would wait forever.
constexpr auto kFreeLimit = std::chrono::seconds(10);

// Waits for the work of the memory's device, as CUDA does, then frees the
// memory.
cudaError_t FreeTracked(void* pointer, AllocationMap& owner) {
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t error = CheckUnsafeCall();
  if (error != cudaSuccess) return error;
  const std::optional<Allocation> piece = FindAllocation(owner, pointer, 0);
  if (!piece.has_value()) return Record(cudaErrorInvalidValue);
  NoteHostWait();
  if (DeviceLock lock; !WaitForDevice(lock, piece->device, kFreeLimit)) {
    std::fputs(
        "stand-in: a call that frees memory would hang, since work of its "
        "device does not end; the memory is kept\n",
        stderr);
    return Record(cudaErrorLaunchFailure);
  }
  const std::lock_guard lock(memory_mutex);
  if (owner.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) {
    return Record(cudaErrorInvalidValue);
  }
  std::free(pointer);
  return cudaSuccess;
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

cudaError_t Record(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void SetFault(std::string what) {
  const std::lock_guard lock(fault_mutex);
  Fault() = std::move(what);
  fault_pending = true;
}

cudaError_t TakeFault() {
  const std::lock_guard lock(fault_mutex);
  return std::exchange(fault_pending, false) ? cudaErrorLaunchFailure
                                             : cudaSuccess;
}

std::string LastFault() {
  const std::lock_guard lock(fault_mutex);
  return Fault();
}

CallCounts Counts() {
  const std::lock_guard lock(count_mutex);
  return counts;
}

CallCounts CountsOfThisThread() {
  const std::lock_guard lock(count_mutex);
  return CurrentThreadCounts();
}

void ResetCounts() {
  const std::lock_guard lock(count_mutex);
  counts = {};
  ++resets;
}

void NoteGroup() { Note(&CallCounts::groups); }

void NoteHostWait() { Note(&CallCounts::host_waits); }

void NoteCommunicatorEnd(bool healthy) {
  Note(healthy ? &CallCounts::communicators_destroyed
               : &CallCounts::communicators_aborted);
}

void SetDeviceCount(int count) { device_count = count; }

bool IsDeviceRange(const void* pointer, size_t bytes) {
  return FindDeviceAllocation(pointer, bytes).has_value();
}

int64_t LivePinnedBytes() {
  const std::lock_guard lock(memory_mutex);
  int64_t bytes = 0;
  for (const auto& [address, piece] : PinnedMemory()) {
    bytes += static_cast<int64_t>(piece.bytes);
  }
  return bytes;
}

cudaError_t AllocateForWindows(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, WindowMemory());
}

cudaError_t FreeForWindows(void* pointer) {
  return FreeTracked(pointer, WindowMemory());
}

bool IsForWindows(const void* pointer, size_t bytes) {
  return IsIn(WindowMemory(), pointer, bytes);
}

}  // namespace lockstep::standin

using lockstep::standin::AllocateTracked;
using lockstep::standin::current_device;
using lockstep::standin::Describe;
using lockstep::standin::device_count;
using lockstep::standin::FreeTracked;
using lockstep::standin::IsDeviceRange;
using lockstep::standin::IsStream;
using lockstep::standin::last_error;
using lockstep::standin::Memory;
using lockstep::standin::PinnedMemory;
using lockstep::standin::Put;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) { return Describe(error).name; }

const char* cudaGetErrorString(cudaError_t error) {
  return Describe(error).text;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count) {
    return Record(cudaErrorInvalidDevice);
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count) {
    return Record(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::memcpy(properties->uuid.bytes, &device, sizeof(device));
  std::snprintf(properties->name, sizeof(properties->name), "stand-in");
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  if (attribute == cudaDevAttrMultiProcessorCount) {
    *value = properties.multiProcessorCount;
    return cudaSuccess;
  }
  if (attribute == cudaDevAttrL2CacheSize) {
    *value = 2 << 10;
    return cudaSuccess;
  }
  return Record(cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, Memory());
}

cudaError_t cudaFree(void* pointer) { return FreeTracked(pointer, Memory()); }

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, PinnedMemory());
}

cudaError_t cudaFreeHost(void* pointer) {
  return FreeTracked(pointer, PinnedMemory());
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  const auto piece = lockstep::standin::FindDeviceAllocation(pointer, 1);
  attributes->type =
      piece.has_value() ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = piece.has_value() ? piece->device : -2;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  using lockstep::standin::IsIn;
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  cudaError_t error = lockstep::standin::CheckCopy(to, from, bytes, kind);
  if (error != cudaSuccess) return Record(error);
  const bool to_pageable =
      kind == cudaMemcpyDeviceToHost && !IsIn(PinnedMemory(), to, bytes);
  // Copies the data now, because the caller may overwrite it afterwards.
  std::shared_ptr<const std::vector<char>> staged;
  if (kind == cudaMemcpyHostToDevice && !IsIn(PinnedMemory(), from, bytes)) {
    const char* const begin = static_cast<const char*>(from);
    staged = std::make_shared<const std::vector<char>>(begin, begin + bytes);
  }
  if (to_pageable || staged != nullptr) {
    error = lockstep::standin::CheckPageable(stream);
    if (error != cudaSuccess) return error;
  }
  error = Put(stream, [to, from, bytes, staged] {
    return [to, from, bytes, staged] {
      std::memmove(to, staged == nullptr ? from : staged->data(), bytes);
      return true;
    };
  });
  return error == cudaSuccess && to_pageable ? cudaStreamSynchronize(stream)
                                             : error;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  cudaError_t error = lockstep::standin::CheckUnsafeCall();
  if (error == cudaSuccess) error = Record(TakeFault());
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind);
  if (error != cudaSuccess || kind == cudaMemcpyDeviceToDevice) return error;
  const bool waited = kind == cudaMemcpyDeviceToHost && bytes > 0 &&
                      !lockstep::standin::IsIn(PinnedMemory(), to, bytes);
  return waited ? cudaSuccess : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!IsDeviceRange(to, bytes)) return Record(cudaErrorInvalidValue);
  return Put(stream, [to, value, bytes] {
    return [to, value, bytes] {
      std::memset(to, value, bytes);
      return true;
    };
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const cudaError_t error = lockstep::standin::CheckUnsafeCall();
  return error == cudaSuccess ? cudaMemsetAsync(to, value, bytes) : error;
}
