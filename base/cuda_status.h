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

// OK for cudaSuccess. Otherwise a message of the form
//   <what>: cudaErrorInvalidValue (1): invalid argument
// with the code
//   kInvalidArgument     for a bad argument, launch shape, device or handle,
//   kResourceExhausted   when memory or launch resources ran out,
//   kFailedPrecondition  where there is no usable device or driver,
//   kUnimplemented       for what the device or driver does not support,
//   kUnavailable         for cudaErrorNotReady: ask again,
//   kInternal            for everything else, faults in kernels among them.
//
// what: the call or launch that gave the error. A fault in a kernel comes out
// of a later call than the one that launched it.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

template <auto kDestroy>
struct CudaDeleter {
  void operator()(auto* handle) const { kDestroy(handle); }
};

// Destroying a stream or an event waits for nothing; freeing memory waits for
// the work of its device.
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>,
                               CudaDeleter<&cudaStreamDestroy>>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>,
                              CudaDeleter<&cudaEventDestroy>>;
using DeviceMemory = std::unique_ptr<std::byte, CudaDeleter<&cudaFree>>;
using PinnedMemory = std::unique_ptr<std::byte, CudaDeleter<&cudaFreeHost>>;

// The device of a rank among those of its host: they are dealt out in turn.
// Errors: kNotFound where there is no GPU.
absl::StatusOr<int> DeviceOfRank(int local_rank);

// All of the current device. Errors: CudaStatus of what the runtime says.

// Does not wait for the default stream.
absl::StatusOr<Stream> MakeStream();
// The same, whose blocks come before those of other streams: for communication,
// which other ranks wait for.
absl::StatusOr<Stream> MakeUrgentStream();
// Cannot be timed.
absl::StatusOr<Event> MakeEvent();
absl::StatusOr<Event> MakeTimedEvent();
// Aligned to 256. Not set to anything.
absl::StatusOr<DeviceMemory> AllocateDeviceMemory(int64_t bytes);
// Host memory that every device copies to and from, without a copy between.
// Aligned to 256. Not set to anything.
absl::StatusOr<PinnedMemory> AllocatePinnedMemory(int64_t bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_STATUS_H_
