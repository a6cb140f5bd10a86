// The optimizers of models/optimizer.h on a GPU, with the same bits.
#ifndef LOCKSTEP_MODELS_CUDA_OPTIMIZER_H_
#define LOCKSTEP_MODELS_CUDA_OPTIMIZER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "models/cuda/loss_scale.h"
#include "models/optimizer.h"

namespace lockstep {

// The count of steps and the numbers of the current one, in device memory. A
// graph that was captured from one step therefore takes later steps too.
struct DeviceOptimizerStep {
  int64_t steps = 0;  // As in OptimizerState.
  StepFactors factors;
};

// The arrays of an optimizer: device float32 [count].
struct OptimizerArrays {
  int64_t count = 0;
  float* values = nullptr;
  const float* gradients = nullptr;
  float* first = nullptr;   // The first array of StateNames; null: none.
  float* second = nullptr;  // The second.
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadOptimizerKernels();

// Enqueues the beginning of a step: counts it, unless the optimizer has no
// arrays, and stores FactorsOf. learning_rate: device memory. scale: if it is
// not null and its `overflows` is set, nothing changes. stream: of the current
// device. Cost: one thread. Errors: those of the launch.
absl::Status BeginOptimizerStep(const OptimizerOptions& options,
                                const float* learning_rate,
                                const LossScale* scale,
                                DeviceOptimizerStep* step, cudaStream_t stream);

// Enqueues the update of all elements with the factors of the step that was
// begun last. Not for plain SGD (SgdUpdateOnGpu). scale: as above. Cost: reads
// each array once, and writes each but the gradients. Errors: those of the
// launch.
absl::Status UpdateOnGpu(OptimizerKind kind, const OptimizerArrays& arrays,
                         const DeviceOptimizerStep* step,
                         const LossScale* scale, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_OPTIMIZER_H_
