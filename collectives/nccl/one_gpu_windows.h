// Windows of several ranks in the memory of one GPU, without NCCL: for tests of
// the kernels that read the other ranks' memory, where there is only one GPU.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_ONE_GPU_WINDOWS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_ONE_GPU_WINDOWS_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace lockstep {

// A window of each rank. Rank r's memory begins at 4 GiB times r of one range
// of addresses, as NCCL lays out the windows of ranks that access each other's
// memory. Owns the memory, which is zeroed.
class OneGpuWindows {
 public:
  // bytes: of each rank; rounded up to the GPU's unit of allocation. Errors:
  // kUnimplemented if the GPU has no virtual memory management; CudaStatus's.
  static absl::StatusOr<std::unique_ptr<OneGpuWindows>> Create(int world_size,
                                                               int64_t bytes);
  virtual ~OneGpuWindows() = default;

  // Returns a rank's window, for kernels.
  virtual ncclWindow_t window(int rank) const = 0;
  // Returns a rank's memory, on the device.
  virtual std::byte* memory(int rank) const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_ONE_GPU_WINDOWS_H_
