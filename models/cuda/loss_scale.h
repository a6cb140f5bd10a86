// Dynamic loss scaling for steps in float16, decided on the GPU.
#ifndef LOCKSTEP_MODELS_CUDA_LOSS_SCALE_H_
#define LOCKSTEP_MODELS_CUDA_LOSS_SCALE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// The factor of the loss's gradient, in device memory. Small gradients would be
// zero in float16 without it. The rule and its constants are those of PyTorch's
// GradScaler: a step with a gradient that is not finite is skipped and halves
// the scale, and kGrowthInterval steps without one double it (Micikevicius et
// al., Mixed Precision Training, ICLR 2018). Ranks that begin with the same
// scale and decide on the same sums of gradients keep the same scale.
struct LossScale {
  static constexpr float kFirst = 65536;
  static constexpr float kLeast = 1;
  static constexpr float kMost = 1 << 24;
  static constexpr int32_t kGrowthInterval = 2000;

  float scale = kFirst;    // A power of two in [kLeast, kMost].
  int32_t good_steps = 0;  // Since the scale changed.
  int32_t overflows = 0;   // 1: a gradient of this step is not finite.
  int32_t skipped = 0;     // The number of skipped steps.
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadLossScaleKernels();

// Enqueues gradients[i] /= scale, which is exact for normal numbers, and sets
// `overflows` if one of them is not finite. gradients: device float32 [count].
// stream: of the current device. Errors: those of the launch.
absl::Status UnscaleGradients(int64_t count, float* gradients, LossScale* scale,
                              cudaStream_t stream);

// Enqueues the end of a step, after its update: the next scale, the count of
// skipped steps, and overflows = 0. Errors: those of the launch.
absl::Status EndScaledStep(LossScale* scale, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_LOSS_SCALE_H_
