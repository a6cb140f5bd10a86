// The checks of one step on all ranks, and what they are made of.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/step_view.h"

namespace lockstep {

// "rank 1: what".
std::string OnRank(int rank, const std::string& what);

// The element that is furthest off, in bounds, if one is off by more than its
// bound. NaN is. Raises view.largest.
std::optional<size_t> Worst(const StepView& view, std::span<const double> got,
                            const Bounded& want);

// "y[n=0, c=3, i=5] is 1, wanted 2, off by 1, bound 0.1".
std::string Describe(const std::string& where, double got, double want,
                     double bound);

// Of what a layer tracks. Each returns what is wrong, or "".
std::string CheckRunningMean(const StepView& view);
std::string CheckRunningVariance(const StepView& view);
std::string CheckBatchCount(const StepView& view);
std::string CheckRanksAgree(const StepView& view);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
