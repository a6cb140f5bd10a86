// The CUDA runtime: its errors as absl::Status, devices, and owners of streams,
// events, device memory and pinned host memory.
#ifndef LOCKSTEP_BASE_CUDA_STATUS_H_
#define LOCKSTEP_BASE_CUDA_STATUS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Returns OK for cudaSuccess. Otherwise returns a message of the form
//   <what>: cudaErrorInvalidValue (1): invalid argument
// with the code
//   kInvalidArgument     for a bad argument, launch shape, device or handle,
//   kResourceExhausted   when memory or launch resources ran out,
//   kFailedPrecondition  if there is no usable device or driver,
//   kUnimplemented       if the device or driver does not support the call,
//   kUnavailable         for cudaErrorNotReady: the caller asks again,
//   kInternal            for all other errors, including faults in kernels.
//
// what: the call or launch that gave the error. A fault in a kernel is reported
// by a later call than the one that launched it.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

template <auto kDestroy>
struct CudaDeleter {
  void operator()(auto* handle) const { kDestroy(handle); }
};

// Owners of CUDA handles. Destroying a stream or an event does not wait.
// Freeing memory waits for the work of its device, so that no kernel uses
// memory that is gone. Users rely on this, which is why the memory is not freed
// by cudaFreeAsync. If a kernel hangs, freeing never ends.
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>,
                               CudaDeleter<&cudaStreamDestroy>>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>,
                              CudaDeleter<&cudaEventDestroy>>;
using DeviceMemory = std::unique_ptr<std::byte, CudaDeleter<&cudaFree>>;
using PinnedMemory = std::unique_ptr<std::byte, CudaDeleter<&cudaFreeHost>>;

// Returns the device of a rank. The ranks of a host get its devices
// round-robin. Errors: kNotFound if the host has no GPU.
absl::StatusOr<int> DeviceOfRank(int local_rank);

// The following functions all use the current device. Errors: the CudaStatus of
// the runtime's error.

// Creates a stream that does not wait for the default stream.
absl::StatusOr<Stream> MakeStream();
// Creates a stream like MakeStream's with the highest priority: the device
// schedules its blocks before those of other streams. For communication, which
// other ranks wait for.
absl::StatusOr<Stream> MakeUrgentStream();
// Creates an event that cannot be timed.
absl::StatusOr<Event> MakeEvent();
absl::StatusOr<Event> MakeTimedEvent();
// Allocates device memory. It is aligned to 256 bytes and not initialised.
absl::StatusOr<DeviceMemory> AllocateDeviceMemory(int64_t bytes);
// Allocates host memory that every device can access directly, without an
// intermediate copy. It is aligned to 256 bytes and not initialised.
absl::StatusOr<PinnedMemory> AllocatePinnedMemory(int64_t bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_STATUS_H_
