// Compares a layer's run with the reference.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_

#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"

namespace lockstep::conformance {

// Compares a run with the reference. `ranks` is indexed by rank. Each check
// runs on every step, in this order:
//
//   Status            A rank refuses one value per channel if the semantics say
//                     so: in one line, equal on every rank, with the running
//                     statistics unchanged. Nothing else is refused.
//   Untouched         Inputs and the memory beside outputs are unchanged.
//   Ready             gradients_ready was called once, with final gradients.
//   Output            y is the reference's, within its bound.
//   RunningMean       The running mean follows from its value before the step.
//   RunningVariance   The running variance follows likewise.
//   BatchCount        The count of batches, if there is one, grows by one.
//   BiasGradient      The sum of the ranks' dbias is the reference's.
//   WeightGradient    The sum of the ranks' dweight is the reference's.
//   InputGradient     dx is the reference's.
//   ResidualGradient  dresidual is the reference's, to the bit.
//   RanksAgree        All ranks have the same bits of running statistics.
//
// Each step starts from the statistics that the layer had, so no tolerance
// grows with the number of steps. Errors: kDataLoss, "NAME: CASE, step S, rank
// R: ..." with the element, its error, the bound, and the cause if the checks
// can tell.
//
// Without an error, returns the largest quotient of any number's error and its
// bound: at most 1.
absl::StatusOr<double> MeasureRun(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  std::span<const RankRun> ranks);

// Checks "SameBits": two runs of the same case must give the same bits on every
// rank. Error: kDataLoss, with the same message format. `between` says how the
// runs differ.
absl::Status CheckSameBits(const SolvedProblem& solved,
                           const BatchNormVariant& variant,
                           std::span<const RankRun> runs,
                           std::span<const RankRun> others,
                           const std::string& between);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
