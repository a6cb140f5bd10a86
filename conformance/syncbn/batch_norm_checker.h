// Holds a layer's run through a problem, on all ranks, to the reference.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_

#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"

namespace lockstep {

// `ranks` is by rank. Asks in this order, each of every step:
//
//   Status            is one value per channel refused where the semantics say
//                     so, in one line and the same on every rank, with the
//                     running statistics left alone, and is nothing else?
//   Untouched         are inputs and the memory beside outputs as they were?
//   Ready             was gradients_ready called once, with final gradients?
//   Output            is y the reference's, within its bound?
//   RunningMean       is the running mean, from what it was before the step?
//   RunningVariance   is the running variance, likewise?
//   BatchCount        has the count of batches grown by one, if there are any?
//   BiasGradient      do the ranks' dbias add up to the reference's?
//   WeightGradient    do the ranks' dweight?
//   InputGradient     is dx the reference's?
//   ResidualGradient  is dresidual, to the bit?
//   RanksAgree        have all ranks the same bits of running statistics?
//
// As each step starts from the statistics that the layer had, no tolerance
// grows with the number of steps. Errors: kDataLoss, "NAME: CASE, step S, rank
// R: ..." with the element, by how much it is off, the bound, and the cause
// where it can be told.
absl::Status CheckRun(const SolvedProblem& solved,
                      const BatchNormVariant& variant,
                      std::span<const RankRun> ranks);

// The same, and where there is no error, the largest that any number is off,
// over its bound: at most 1.
absl::StatusOr<double> MeasureRun(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  std::span<const RankRun> ranks);

// SameBits: whether two runs of the same case gave the same bits on every rank.
// Error: kDataLoss, likewise; `between` is how the runs differ.
absl::Status CheckSameBits(const SolvedProblem& solved,
                           const BatchNormVariant& variant,
                           std::span<const RankRun> runs,
                           std::span<const RankRun> others,
                           const std::string& between);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECKER_H_
