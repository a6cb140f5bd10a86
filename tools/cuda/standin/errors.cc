// Errors of the stand-in runtime.
#include "tools/cuda/standin/errors.h"

#include <mutex>
#include <string>
#include <utility>

#include "tools/cuda/standin/include/cuda_runtime.h"
#include "tools/cuda/standin/launch.h"

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
  const char* name;
  const char* text;
};

Description Describe(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidConfiguration:
      return {"cudaErrorInvalidConfiguration",
              "invalid configuration argument"};
    case cudaErrorInsufficientDriver:
      return {"cudaErrorInsufficientDriver",
              "driver too old for the CUDA runtime"};
    case cudaErrorNoDevice:
      return {"cudaErrorNoDevice", "no CUDA-capable device"};
    case cudaErrorInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorInvalidResourceHandle:
      return {"cudaErrorInvalidResourceHandle", "invalid resource handle"};
    case cudaErrorNotReady:
      return {"cudaErrorNotReady", "device not ready"};
    case cudaErrorLaunchOutOfResources:
      return {"cudaErrorLaunchOutOfResources",
              "too many resources requested for launch"};
    case cudaErrorLaunchFailure:
      return {"cudaErrorLaunchFailure", "unspecified launch failure"};
    case cudaErrorNotSupported:
      return {"cudaErrorNotSupported", "operation not supported"};
  }
  return {"unrecognized error code", "unrecognized error code"};
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

}  // namespace lockstep::standin

cudaError_t cudaGetLastError() {
  return std::exchange(lockstep::standin::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() { return lockstep::standin::last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  return lockstep::standin::Describe(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return lockstep::standin::Describe(error).text;
}
