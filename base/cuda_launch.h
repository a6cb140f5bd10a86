// Loading and launching kernels. Only .cu files include this header.
#ifndef LOCKSTEP_BASE_CUDA_LAUNCH_H_
#define LOCKSTEP_BASE_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"

namespace lockstep {

// Loads the kernels now. Otherwise the driver would load each at its first
// launch, which waits for the device. Errors: CudaStatus's.
template <typename... Kernels>
absl::Status LoadKernels(Kernels*... kernels) {
  cudaFuncAttributes attributes;
  absl::Status status;
  (status.Update(CudaStatus(cudaFuncGetAttributes(&attributes, kernels),
                            "cudaFuncGetAttributes")),
   ...);
  return status;
}

// Launches a grid of blocks. Does nothing if a side of the grid is 0. what:
// names the launch in errors, which are CudaStatus's.
template <typename... Parameters, typename... Arguments>
absl::Status LaunchGrid(dim3 grid, int threads, cudaStream_t stream,
                        absl::string_view what, void (*kernel)(Parameters...),
                        Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0) return absl::OkStatus();
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

// The threads of a block that LaunchOver launches.
inline constexpr int kThreadsOver = 256;

// Launches a kernel that takes element i = its thread's number in the grid, and
// every element a grid's size further. Otherwise as LaunchGrid.
template <typename... Parameters, typename... Arguments>
absl::Status LaunchOver(int64_t count, cudaStream_t stream,
                        absl::string_view what, void (*kernel)(Parameters...),
                        Arguments... arguments) {
  // More blocks than a GPU runs at once; each thread takes several elements.
  constexpr int64_t kMostBlocks = 4096;
  const int64_t blocks =
      std::min((count + kThreadsOver - 1) / kThreadsOver, kMostBlocks);
  return LaunchGrid(dim3(static_cast<unsigned>(blocks)), kThreadsOver, stream,
                    what, kernel, arguments...);
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_LAUNCH_H_
