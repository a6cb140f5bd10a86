// How many devices the stand-in has: for tests of several GPUs.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICES_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICES_H_

namespace lockstep::standin {

// At least 1, which is also what there is without this call. Each device has a
// UUID of its own. Not while another thread uses the runtime.
void SetDeviceCount(int count);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICES_H_
