#include "base/cuda_status.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

absl::StatusCode Code(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorNotSupported:
      return absl::StatusCode::kUnimplemented;
    case cudaErrorNotReady:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::Status(
      Code(error),
      absl::StrCat(what, ": ", cudaGetErrorName(error), " (",
                   static_cast<int>(error), "): ", cudaGetErrorString(error)));
}

absl::StatusOr<int> DeviceOfRank(int local_rank) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return local_rank % devices;
  // The runtime's message for a missing driver is misleading: it names a driver
  // version.
  return absl::NotFoundError(absl::StrCat(
      "no GPU: ", error == cudaSuccess || error == cudaErrorNoDevice
                      ? "the driver finds no NVIDIA GPU"
                  : error == cudaErrorInsufficientDriver
                      ? "no NVIDIA driver, or one that is too old for this "
                        "CUDA runtime"
                      : cudaGetErrorString(error)));
}

absl::StatusOr<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags"));
  return Stream(stream);
}

absl::StatusOr<Stream> MakeUrgentStream() {
  int least = 0;
  int greatest = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                 "cudaDeviceGetStreamPriorityRange"));
  cudaStream_t stream = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
      "cudaStreamCreateWithPriority"));
  return Stream(stream);
}

absl::StatusOr<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                 "cudaEventCreateWithFlags"));
  return Event(event);
}

absl::StatusOr<Event> MakeTimedEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
  return Event(event);
}

absl::StatusOr<DeviceMemory> AllocateDeviceMemory(int64_t bytes) {
  std::byte* memory = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
      absl::StrCat("cudaMalloc of ", bytes, " bytes")));
  return DeviceMemory(memory);
}

absl::StatusOr<PinnedMemory> AllocatePinnedMemory(int64_t bytes) {
  std::byte* memory = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMallocHost(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
      absl::StrCat("cudaMallocHost of ", bytes, " bytes")));
  return PinnedMemory(memory);
}

}  // namespace lockstep
