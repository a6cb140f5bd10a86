// The checks behind the claim "N ranks on GPUs take one rank's steps".
#ifndef LOCKSTEP_CONFORMANCE_CUDA_GPU_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_CUDA_GPU_CHECKS_H_

#include "absl/status/status.h"
#include "conformance/cuda/gpu_run.h"
#include "conformance/network/network_checks.h"

namespace lockstep::conformance {

// The checks that a mutant can fail here. The networks have no batch norm, so
// Counts and Buffers have no mutants.
inline constexpr const char* kGpuChecks[] = {"SameStart", "RanksAgree", "Skips",
                                             "Updates",   "Gradients",  "Loss"};

// Checks that the ranks decide alike which steps float16's loss scaling skips.
// At the start and after every step, all ranks hold the same loss scale. A step
// is skipped by all ranks if its summed gradients are not finite, and by none
// if they are. A skipped step changes no parameter and halves the scale. Only
// for float16, because other types skip no step. Error: kDataLoss.
absl::Status CheckSkips(const GpuTrace& trace);

// Returns the verdicts of CheckNetwork on the steps before the first that a
// rank skips, with Updates on every rank, and of CheckSkips, under "Skips".
// Where the numbers show the cause, the messages of Updates and Gradients name
// it.
NetworkVerdicts CheckGpuRun(const GpuRun& run, const GpuTrace& trace);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CUDA_GPU_CHECKS_H_
