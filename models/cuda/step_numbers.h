// The numbers of a step that differ from step to step.
#ifndef LOCKSTEP_MODELS_CUDA_STEP_NUMBERS_H_
#define LOCKSTEP_MODELS_CUDA_STEP_NUMBERS_H_

#include <cstdint>

namespace lockstep {

// Kernels read these numbers in device memory. A graph that was captured from
// one step therefore computes other steps too.
struct StepNumbers {
  uint64_t seed = 0;  // As in Batch (model.h).
  int64_t step = 0;
  float learning_rate = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_STEP_NUMBERS_H_
