// The state that every part of the stand-in uses: the current device, errors,
// kernels' faults, and counts of calls (control.h).
#ifndef LOCKSTEP_STANDIN_RUNTIME_H_
#define LOCKSTEP_STANDIN_RUNTIME_H_

#include <cstdint>
#include <string>

#include "standin/control.h"
#include "standin/include/device_code.h"

namespace lockstep::standin {

// Returns the calling thread's device.
int CurrentDevice();

// Records an error as this host thread's last error. Returns it.
cudaError_t Record(cudaError_t error);

// Records that a kernel ended in a fault. LastFault() then returns `what`.
void SetFault(std::string what);

// Returns cudaErrorLaunchFailure if a kernel ended in a fault since the last
// call.
cudaError_t TakeFault();

// Adds one to a count of the calling thread, and of all threads.
void Count(int64_t CallCounts::*count);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_RUNTIME_H_
