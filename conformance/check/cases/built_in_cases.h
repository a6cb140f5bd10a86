// The cases that are built into the checker.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_

#include <vector>

#include "conformance/check/cases/check_case.h"

namespace lockstep::conformance {

// Returns the cases for a trainer on `world_size` ranks, at least 2, in the
// order of the report: the plainest first. The cases are small: global batches
// of a few samples per rank, and at most six steps or N. Each case takes one
// start with one rank and one with all ranks. The resumed case takes two starts
// with all ranks.
//
// The data are BlobDataset's and the weights WellConditionedLeNet's
// (lenet_reference.h). Batch norms have weights of 0.1 and biases of 1. Their
// outputs are therefore ten standard deviations from zero, where the ReLU
// behind them has its kink.
//
// In the accumulation case, `accumulate` differs from 1, N and N * N, so a
// missing division shows as a factor of its own. One rank accumulates nothing.
std::vector<CheckCase> BuiltInCases(int world_size);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_
