#include "standin/runtime.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "standin/control.h"
#include "standin/include/cuda_runtime.h"
#include "standin/include/device_code.h"

namespace lockstep::standin {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;

Mutex fault_mutex;
bool fault_pending ABSL_GUARDED_BY(fault_mutex) = false;

std::string& Fault() ABSL_EXCLUSIVE_LOCKS_REQUIRED(fault_mutex) {
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

Mutex count_mutex;
// The counts of all threads.
CallCounts counts ABSL_GUARDED_BY(count_mutex);
int64_t resets ABSL_GUARDED_BY(count_mutex) = 0;
struct ThreadCounts {
  CallCounts counts;
  int64_t resets = 0;  // The number of resets before it.
};
thread_local ThreadCounts thread_counts;

CallCounts& CurrentThreadCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(count_mutex) {
  if (thread_counts.resets != resets) {
    thread_counts = {.counts = {}, .resets = resets};
  }
  return thread_counts.counts;
}

Mutex devices_mutex;
Devices current_devices ABSL_GUARDED_BY(devices_mutex);
constinit thread_local int current_device = 0;

}  // namespace

cudaError_t Record(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void SetFault(std::string what) {
  const MutexLock lock(fault_mutex);
  Fault() = std::move(what);
  fault_pending = true;
}

cudaError_t TakeFault() {
  const MutexLock lock(fault_mutex);
  return std::exchange(fault_pending, false) ? cudaErrorLaunchFailure
                                             : cudaSuccess;
}

std::string LastFault() {
  const MutexLock lock(fault_mutex);
  return Fault();
}

CallCounts Counts() {
  const MutexLock lock(count_mutex);
  return counts;
}

CallCounts CountsOfThisThread() {
  const MutexLock lock(count_mutex);
  return CurrentThreadCounts();
}

void Count(int64_t CallCounts::*member) {
  const MutexLock lock(count_mutex);
  ++(counts.*member);
  ++(CurrentThreadCounts().*member);
}

void ResetCounts() {
  const MutexLock lock(count_mutex);
  counts = {};
  ++resets;
}

int CurrentDevice() { return current_device; }

void SetDevices(const Devices& devices) {
  const MutexLock lock(devices_mutex);
  current_devices = devices;
}

Devices CurrentDevices() {
  const MutexLock lock(devices_mutex);
  return current_devices;
}

}  // namespace lockstep::standin

using lockstep::standin::current_device;
using lockstep::standin::CurrentDevices;
using lockstep::standin::Describe;
using lockstep::standin::last_error;
using lockstep::standin::Record;

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) { return Describe(error).name; }

const char* cudaGetErrorString(cudaError_t error) {
  return Describe(error).text;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = CurrentDevices().count;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= CurrentDevices().count) {
    return Record(cudaErrorInvalidDevice);
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= CurrentDevices().count) {
    return Record(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::memcpy(properties->uuid.bytes, &device, sizeof(device));
  std::snprintf(properties->name, sizeof(properties->name), "stand-in");
  properties->multiProcessorCount = 2;
  properties->pciBusID = CurrentDevices().one_bus ? 0 : device;
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
  if (attribute == cudaDevAttrComputeMode) {
    *value = CurrentDevices().exclusive ? cudaComputeModeExclusiveProcess
                                        : cudaComputeModeDefault;
    return cudaSuccess;
  }
  if (attribute == cudaDevAttrL2CacheSize) {
    *value = 2 << 10;
    return cudaSuccess;
  }
  return Record(cudaErrorInvalidValue);
}
