// The loss on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_LOSS_H_
#define LOCKSTEP_MODELS_CUDA_LOSS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"

namespace lockstep {

// Sums over samples, in device memory.
struct DeviceMetrics {
  double loss_sum;
  int64_t correct;
  int64_t samples;
};

// The operands of SoftmaxCrossEntropyOnGpu; all are device memory.
struct LossOperands {
  int64_t n = 0;
  int64_t classes = 1;
  DataType type = DataType::kFloat32;  // Of logits and gradient.
  const void* logits = nullptr;        // [n, classes].
  const int32_t* labels = nullptr;     // [n], each in [0, classes).
  // The labels and shares of mixed images (Batch in model.h); null if none are
  // mixed.
  const int32_t* other_labels = nullptr;
  const float* shares = nullptr;
  float gradient_scale = 1;
  const float* loss_scale = nullptr;  // Another factor; null: 1.
  void* gradient = nullptr;           // [n, classes], overwritten; null: none.
  double* sample_losses = nullptr;    // Scratch, [2 n].
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadLossKernels();

// Enqueues the softmax cross-entropy: overwrites `gradient`, and adds the
// batch's sums to `metrics`. As on the CPU it is computed in float64, since
// softmax - 1 cancels; a gradient is rounded to float32, then to `type`. A
// label out of range gives a NaN as its sample's loss. The order of additions
// depends only on n. stream: of the current device. Errors: kUnimplemented for
// a type that is not float32, float16 or bfloat16; those of the launches.
absl::Status SoftmaxCrossEntropyOnGpu(const LossOperands& operands,
                                      DeviceMetrics* metrics,
                                      cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_LOSS_H_
