#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "tools/cuda/standin/device_code.h"
#include "tools/cuda/standin/include/cuda_runtime.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;

std::mutex fault_mutex;  // Guards what follows.
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
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure",
     "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

Description Describe(cudaError_t error) {
  for (const Description& each : kDescriptions) {
    if (each.error == error) return each;
  }
  return {error, "unrecognized error code", "unrecognized error code"};
}

cudaError_t Check(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (config.numAttrs != 0 || config.dynamicSmemBytes != 0) {
    return cudaErrorNotSupported;
  }
  if (!IsStream(config.stream)) return cudaErrorInvalidResourceHandle;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYz || grid.z > kMaxGridYz) {
    return cudaErrorInvalidConfiguration;
  }
  // Each dimension too, since the product may have wrapped around.
  if (threads > kMaxThreadsPerBlock || block.x > kMaxThreadsPerBlock ||
      block.y > kMaxThreadsPerBlock || block.z > kMaxBlockZ) {
    return cudaErrorInvalidConfiguration;
  }
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

cudaError_t Launch(const cudaLaunchConfig_t& config,
                   std::function<void()> thread) {
  const cudaError_t error = Record(Check(config));
  if (error != cudaSuccess) return error;
  Enqueue(config.stream, [config, thread = std::move(thread)] {
    RunBlocks(config, thread);
    return true;
  });
  return cudaSuccess;
}

}  // namespace lockstep::standin

cudaError_t cudaGetLastError() {
  return std::exchange(lockstep::standin::last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  return lockstep::standin::Describe(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return lockstep::standin::Describe(error).text;
}
