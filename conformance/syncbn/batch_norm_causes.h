// What a wrong result looks like: the causes that would give it.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CAUSES_H_

#include <cstdint>
#include <span>
#include <string>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/step_checks.h"

namespace lockstep {

// Each returns ", as if ..." for the first cause that fits the numbers within
// four times their bounds, or else "". They look at the inputs and the reference
// of a step, and at `got` in place of what the ranks have. A cause whose numbers
// would not be rejected, or that come no closer, explains nothing.

// y of one channel on one rank. got: [n, c, hw] of the rank; which of it was
// never written is told by the rank's bytes.
std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got);

// dx, likewise.
std::string CauseOfInputGradient(const StepView& view, int rank,
                                 int64_t channel, std::span<const double> got);

// Running statistics [c] of one rank, which were `mean` and `variance` before a
// batch of weight `weight` entered.
struct RunningBefore {
  std::span<const double> mean;
  std::span<const double> variance;
  double weight = 0;
};
std::string CauseOfRunningMean(const StepView& view, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got);
std::string CauseOfRunningVariance(const StepView& view, int rank,
                                   const RunningBefore& before,
                                   const Bounded& want,
                                   std::span<const double> got);

// The sum over ranks [c] of a parameter's gradient, which `gradient` is in the
// reference. own: that of rank 0 alone.
std::string CauseOfParameterGradient(const StepView& view, const Bounded& want,
                                     Bounded ReferenceResult::*gradient,
                                     std::span<const double> own,
                                     std::span<const double> got);

// dresidual of one rank, [n, c, hw], to the bit.
std::string CauseOfResidualGradient(const StepView& view, int rank,
                                    std::span<const double> got);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CAUSES_H_
