// Mutants of data-parallel training on GPUs.
#ifndef LOCKSTEP_CONFORMANCE_CUDA_GPU_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CUDA_GPU_MUTANTS_H_

#include "conformance/mutant.h"

namespace lockstep::conformance {

// Returns the mutants of events, buckets, graphs, input buffers, master
// weights, loss scales and masks. Each runs two ranks on the stand-in's GPUs.
MutantSuite GpuMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CUDA_GPU_MUTANTS_H_
