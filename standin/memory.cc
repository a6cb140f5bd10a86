#include "standin/memory.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/graph.h"
#include "standin/include/cuda_runtime.h"
#include "standin/include/device_code.h"
#include "standin/queue.h"
#include "standin/runtime.h"

namespace lockstep::standin {
namespace {

Mutex memory_mutex;

enum class Kind { kDevice, kWindow, kPinned };

struct Allocation {
  Kind kind = Kind::kDevice;
  size_t bytes = 0;
  int device = 0;
};

// Allocations by address. Never destroyed, because destructors of static
// objects may free memory.
std::map<uintptr_t, Allocation>& Memory()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_mutex) {
  static auto& memory = *new std::map<uintptr_t, Allocation>;
  return memory;
}

// Returns the allocation that contains the range.
std::optional<Allocation> FindAllocation(const void* pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  const MutexLock lock(memory_mutex);
  const auto after = Memory().upper_bound(address);
  if (after == Memory().begin()) return std::nullopt;
  const auto& [start, piece] = *std::prev(after);
  const bool is_in = address - start <= piece.bytes &&
                     bytes <= piece.bytes - (address - start);
  return is_in ? std::optional(piece) : std::nullopt;
}

std::optional<Allocation> FindDeviceAllocation(const void* pointer,
                                               size_t bytes) {
  const std::optional<Allocation> piece = FindAllocation(pointer, bytes);
  return piece.has_value() && piece->kind != Kind::kPinned ? piece
                                                           : std::nullopt;
}

bool IsIn(Kind kind, const void* pointer, size_t bytes) {
  const std::optional<Allocation> piece = FindAllocation(pointer, bytes);
  return piece.has_value() && piece->kind == kind;
}

// Checks a call that allocates, frees, copies or sets memory, which is
// forbidden while a stream is captured. Records the error and returns it.
cudaError_t CheckUnsafeCall() {
  const DeviceLock lock;
  return CheckUnsafe();
}

// Checks an asynchronous copy of pageable memory, which is forbidden if its
// stream is captured.
cudaError_t CheckPageable(cudaStream_t stream) {
  const DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  return found == nullptr
             ? cudaSuccess
             : CheckNotCaptured(*found, cudaErrorStreamCaptureUnsupported);
}

// Allocates memory and records it.
cudaError_t AllocateTracked(void** pointer, size_t bytes, Kind kind) {
  *pointer = nullptr;
  const cudaError_t error = CheckUnsafeCall();
  if (error != cudaSuccess || bytes == 0) return error;
  const size_t alignment = kind == Kind::kWindow ? 4096 : 256;
  if (posix_memalign(pointer, alignment, bytes) != 0) {
    *pointer = nullptr;
    return Record(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, 0xff, bytes);
  Count(&CallCounts::allocations);
  const MutexLock lock(memory_mutex);
  Memory()[reinterpret_cast<uintptr_t>(*pointer)] = {kind, bytes,
                                                     CurrentDevice()};
  return cudaSuccess;
}

// How long freeing memory waits for a device. CUDA would wait forever.
constexpr auto kFreeLimit = std::chrono::seconds(10);

// Waits for the work of the memory's device, as CUDA does, then frees the
// memory.
cudaError_t FreeTracked(void* pointer, Kind kind) {
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t error = CheckUnsafeCall();
  if (error != cudaSuccess) return error;
  const std::optional<Allocation> piece = FindAllocation(pointer, 0);
  if (!piece.has_value() || piece->kind != kind) {
    return Record(cudaErrorInvalidValue);
  }
  Count(&CallCounts::host_waits);
  if (DeviceLock lock; !lock.WaitForDevice(piece->device, kFreeLimit)) {
    std::fputs(
        "stand-in: a call that frees memory would hang, since work of its "
        "device does not end; the memory is kept\n",
        stderr);
    return Record(cudaErrorLaunchFailure);
  }
  const MutexLock lock(memory_mutex);
  if (Memory().erase(reinterpret_cast<uintptr_t>(pointer)) == 0) {
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

bool IsDeviceRange(const void* pointer, size_t bytes) {
  return FindDeviceAllocation(pointer, bytes).has_value();
}

int64_t LivePinnedBytes() {
  const MutexLock lock(memory_mutex);
  int64_t bytes = 0;
  for (const auto& [address, piece] : Memory()) {
    if (piece.kind == Kind::kPinned) bytes += static_cast<int64_t>(piece.bytes);
  }
  return bytes;
}

cudaError_t AllocateForWindows(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, Kind::kWindow);
}

cudaError_t FreeForWindows(void* pointer) {
  return FreeTracked(pointer, Kind::kWindow);
}

bool IsForWindows(const void* pointer, size_t bytes) {
  return IsIn(Kind::kWindow, pointer, bytes);
}

void RecordDeviceObject(const void* object, size_t bytes) {
  const MutexLock lock(memory_mutex);
  Memory()[reinterpret_cast<uintptr_t>(object)] = {Kind::kDevice, bytes,
                                                   CurrentDevice()};
}

void ForgetDeviceObject(const void* object) {
  const MutexLock lock(memory_mutex);
  Memory().erase(reinterpret_cast<uintptr_t>(object));
}

}  // namespace lockstep::standin

using lockstep::standin::AllocateTracked;
using lockstep::standin::FreeTracked;
using lockstep::standin::IsDeviceRange;
using lockstep::standin::IsIn;
using lockstep::standin::IsStream;
using lockstep::standin::Kind;
using lockstep::standin::Put;
using lockstep::standin::Record;
using lockstep::standin::TakeFault;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, Kind::kDevice);
}

cudaError_t cudaFree(void* pointer) {
  return FreeTracked(pointer, Kind::kDevice);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return AllocateTracked(pointer, bytes, Kind::kPinned);
}

cudaError_t cudaFreeHost(void* pointer) {
  return FreeTracked(pointer, Kind::kPinned);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer) {
  const auto piece = lockstep::standin::FindAllocation(pointer, 1);
  attributes->type = !piece.has_value()             ? cudaMemoryTypeUnregistered
                     : piece->kind == Kind::kPinned ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeDevice;
  attributes->device = piece.has_value() ? piece->device : -2;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (!IsStream(stream)) return Record(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  cudaError_t error = lockstep::standin::CheckCopy(to, from, bytes, kind);
  if (error != cudaSuccess) return Record(error);
  const bool to_pageable =
      kind == cudaMemcpyDeviceToHost && !IsIn(Kind::kPinned, to, bytes);
  // Copies the data now, because the caller may overwrite it afterwards.
  std::shared_ptr<const std::vector<char>> staged;
  if (kind == cudaMemcpyHostToDevice && !IsIn(Kind::kPinned, from, bytes)) {
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
                      !IsIn(Kind::kPinned, to, bytes);
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
