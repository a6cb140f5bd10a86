// What the stand-in's runtime and its launches share: error state and handles.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_ERRORS_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_ERRORS_H_

#include <string>

#include "tools/cuda/standin/types.h"

namespace lockstep::standin {

// Notes an error as this host thread's last; returns it.
cudaError_t Record(cudaError_t error);

// Notes that a kernel ended in a fault; LastFault() tells it.
void SetFault(std::string what);

// cudaErrorLaunchFailure if a kernel ended in a fault since the last call.
cudaError_t TakeFault();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_ERRORS_H_
