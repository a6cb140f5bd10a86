// Our side of a timed step: the training of one case, on the CPU or a GPU.
#ifndef LOCKSTEP_BENCHMARKS_STEP_OUR_STEP_H_
#define LOCKSTEP_BENCHMARKS_STEP_OUR_STEP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"

namespace lockstep::benchmarks {

// Not thread safe. Each function answers the line of its name (turn.h). First
// is called first. Errors: the model's; kUnimplemented for what a GPU does not
// have.
class OurStep {
 public:
  virtual ~OurStep() = default;

  virtual absl::StatusOr<std::string> First() = 0;
  virtual absl::StatusOr<std::string> Memory() = 0;
  virtual absl::StatusOr<std::string> Time(double seconds) = 0;
  virtual absl::StatusOr<std::string> Layers() = 0;
  virtual absl::StatusOr<std::string> Chosen() = 0;
};

// Loads the case in `folder` (WriteStepFiles), to train it on the CPU. type: of
// activations, float32 or bfloat16. Errors: the files'; the network's.
absl::StatusOr<std::unique_ptr<OurStep>> CreateCpuStep(
    const std::string& folder, DataType type, ConvolutionAlgorithm convolution);

// Does the same on the first GPU. with_graphs: whether steps after the first
// two are launched as graphs. A batch is copied to the GPU for every step,
// while the GPU computes the step before. Times are the GPU's, from the end of
// a step to the end of the next.
absl::StatusOr<std::unique_ptr<OurStep>> CreateGpuStep(
    const std::string& folder, ConvolutionPrecision precision,
    bool with_graphs);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_OUR_STEP_H_
