// The inputs of a problem on every rank, and what must come of them.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "syncbn/activations.h"
#include "syncbn/testing/batch_norm_reference.h"

namespace lockstep {

// Bytes of one rank's inputs in one layout.
struct EncodedBatch {
  std::string x;
  std::string residual;  // Empty: none.
  std::string dy;
};

// One call of Forward and Backward on every rank.
struct SolvedStep {
  bool training = true;
  std::vector<ReferenceBatch> ranks;
  std::vector<EncodedBatch> nchw;  // By rank.
  std::vector<EncodedBatch> nhwc;
  // What a layer that tracks is given in evaluation: [c].
  std::vector<double> running_mean;
  std::vector<double> running_variance;

  // In training of all ranks; in evaluation the running statistics.
  ReferenceStatistics statistics;
  ReferenceResult want;
  // In evaluation: of a layer that does not track, each rank's own batch alone.
  std::vector<ReferenceStatistics> own_statistics;
  std::vector<ReferenceResult> own_want;
};

struct SolvedProblem {
  BatchNormProblem problem;
  ReferenceLayer layer;
  Precision precision;
  DataType statistics_type = DataType::kFloat32;
  // What the running statistics start with: [c].
  std::vector<double> first_mean;
  std::vector<double> first_variance;
  std::vector<SolvedStep> steps;  // kSteps of them.

  ActivationShape ShapeOf(int step, int rank, Layout layout) const;
};

// Inputs: channel c of rank r is normal-like about a mean and with a deviation
// of its own, moved by another step on each rank, so that a rank's statistics
// are not the batch's; with a spike or a drift where the problem says so.
// Upstream gradients are random, with a mean and a part that follows x, so that
// neither dx nor the gradients of the parameters vanish. They are 0 where
// rounding decides whether ReLU lets them through.
SolvedProblem SolveProblem(const BatchNormProblem& problem);

// Whether the reference says something of every channel: a bound on y is at
// most half of the channel's deviation, or of the value's distance from the
// mean where that is more; bounds on dx and dweight are at most a quarter of
// what these are made of. And of the channels no more than a third has dx or a
// parameter's gradient near zero, by chance; those that ReLU closes have none,
// but they are not all. Error: kInternal, saying which. Nothing is asked of
// less than four values per channel, whose dx vanishes.
absl::Status CheckMeaning(const SolvedProblem& solved);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_
