// The cases that a trainer is judged on.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_

#include <vector>

#include "conformance/check/cases/check_case.h"

namespace lockstep {

// For `world_size` ranks, at least 2; in the order in which they are reported,
// the plainest first. The cases are small: global batches of a few samples per
// rank, and at most six steps or N. Each takes one start with one rank and one
// with all ranks, but the resumed case takes two with all ranks.
//
// The data are BlobDataset's and the weights WellConditionedLeNet's
// (lenet_fixtures.h). Batch norms have weights of 0.1 and biases of 1: ten
// standard deviations from zero, where the ReLU behind them has its kink.
//
// In the case of accumulation, `accumulate` is none of 1, N, N * N, so that a
// missing division shows as a factor of its own; one rank accumulates nothing.
std::vector<CheckCase> BuiltInCases(int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CASES_BUILT_IN_CASES_H_
