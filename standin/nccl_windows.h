// NCCL's windows: memory that kernels of other ranks reach. nccl_windows.cc
// implements the functions of NCCL for them (include/nccl.h, nccl_device.h).
#ifndef LOCKSTEP_STANDIN_NCCL_WINDOWS_H_
#define LOCKSTEP_STANDIN_NCCL_WINDOWS_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "standin/device.h"
#include "standin/include/nccl.h"

struct ncclWindow_vidmem {
  std::vector<char*> peers;  // The memory of each rank of the LSA team.
  size_t bytes = 0;
  int lsa_rank = 0;
};

namespace lockstep::standin {

// Deletes a window of a communicator. The window's memory may then be freed.
void DeleteWindow(ncclWindow_t window)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_NCCL_WINDOWS_H_
