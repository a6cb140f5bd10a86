// The causes of a wrong step of ranks on GPUs.
#ifndef LOCKSTEP_CONFORMANCE_CUDA_GPU_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_CUDA_GPU_CAUSES_H_

#include <string>

#include "conformance/cuda/gpu_run.h"

namespace lockstep::conformance {

// Return "; ..." for the first of these steps whose numbers show a cause, or
// "". The causes of wrong gradients:
//
//   - a sum read a rank's gradients before the step had computed them: all of
//     its bucket, or some;
//   - one rank, or all, computed the samples of another step;
//   - one rank, or all, computed with the parameters that the rank had at its
//     start, before rank 0's replaced them;
//   - each rank drew its masks with a seed of its own.
//
// The causes of wrong updates: a rank applied its own gradients in place of
// their sum; a parameter keeps its values; all parameters are bfloat16's.
std::string CauseOfGradients(const GpuRun& run, const GpuTrace& trace,
                             int steps);
std::string CauseOfUpdates(const GpuRun& run, const GpuTrace& trace, int steps);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CUDA_GPU_CAUSES_H_
