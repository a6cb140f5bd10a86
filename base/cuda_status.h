// The one place where the CUDA runtime's errors become absl::Status.
#ifndef LOCKSTEP_BASE_CUDA_STATUS_H_
#define LOCKSTEP_BASE_CUDA_STATUS_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
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

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_STATUS_H_
