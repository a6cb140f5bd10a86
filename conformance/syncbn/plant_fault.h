// Plants faults in layers and asks the suite.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_PLANT_FAULT_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_PLANT_FAULT_H_

#include <vector>

#include "absl/status/status.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/faulty_batch_norm.h"

namespace lockstep {

std::vector<BatchNormFault> AllBatchNormFaults();

// Where a fault is tried: in its own problems, or in a third, drawn once, of a
// part of the grid: float32 and bfloat16, 1 and 3 ranks, 3 and 65 channels;
// fused with everything at 3 ranks, 64 channels too.
std::vector<BatchNormProblem> FaultProblems(const BatchNormFault& fault);

// What CheckRun says of a layer over the CPU's kernels with the fault, by
// variant, all run in one group of threads; for a fault of SameBits twice, and
// what CheckSameBits says.
std::vector<absl::Status> CheckFaulty(
    const BatchNormFault& fault, const BatchNormExam& exam,
    const std::vector<BatchNormVariant>& variants);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_PLANT_FAULT_H_
