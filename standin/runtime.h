// What the stand-in keeps of each host thread and of the process: the current
// device, errors, kernels' faults, and counts of calls (control.h).
#ifndef LOCKSTEP_STANDIN_RUNTIME_H_
#define LOCKSTEP_STANDIN_RUNTIME_H_

#include <string>

#include "standin/device_code.h"

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

// Count a call for the calling thread.
void NoteGroup();
void NoteHostWait();
void NoteCommunicatorEnd(bool healthy);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_RUNTIME_H_
