#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/loss_scale.h"

namespace lockstep {
namespace {

// Threads that find a gradient that is not finite all store the same 1.
__global__ void __launch_bounds__(kThreadsOver)
    UnscaleKernel(int64_t count, float* gradients, LossScale* scale) {
  const float inverse = 1 / scale->scale;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const float gradient = gradients[i] * inverse;
    gradients[i] = gradient;
    // NaN for infinities and NaN, otherwise 0.
    if (gradient - gradient != 0) scale->overflows = 1;
  }
}

// One thread.
__global__ void __launch_bounds__(1) EndStepKernel(LossScale* scale) {
  LossScale next = *scale;
  if (next.overflows != 0) {
    next.scale = fmaxf(next.scale / 2, LossScale::kLeast);
    next.good_steps = 0;
    ++next.skipped;
  } else if (++next.good_steps == LossScale::kGrowthInterval) {
    next.scale = fminf(next.scale * 2, LossScale::kMost);
    next.good_steps = 0;
  }
  next.overflows = 0;
  *scale = next;
}

}  // namespace

absl::Status LoadLossScaleKernels() {
  return LoadKernels(UnscaleKernel, EndStepKernel);
}

absl::Status UnscaleGradients(int64_t count, float* gradients, LossScale* scale,
                              cudaStream_t stream) {
  return LaunchOver(count, stream, "UnscaleKernel launch", UnscaleKernel, count,
                    gradients, scale);
}

absl::Status EndScaledStep(LossScale* scale, cudaStream_t stream) {
  return LaunchGrid(dim3(1), 1, stream, "EndStepKernel launch", EndStepKernel,
                    scale);
}

}  // namespace lockstep
