// A problem's inputs on every rank, with their reference.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"

namespace lockstep::conformance {

// The bytes of one rank's inputs in one layout.
struct EncodedBatch {
  std::string x;
  std::string residual;  // Empty if there is no residual.
  std::string dy;
};

// One call of Forward and Backward on every rank.
struct SolvedStep {
  bool training = true;
  std::vector<ReferenceBatch> ranks;
  // The inputs for each layout of the problem, by rank.
  std::map<Layout, std::vector<EncodedBatch>> inputs;
  const EncodedBatch& InputsOf(Layout layout, int rank) const {
    return inputs.at(layout)[static_cast<size_t>(rank)];
  }
  // The statistics [c] that a layer which tracks receives in evaluation.
  std::vector<double> running_mean;
  std::vector<double> running_variance;

  // The statistics of all ranks in training, the running statistics in
  // evaluation.
  ReferenceStatistics statistics;
  ReferenceResult want;
  // In evaluation of a layer that does not track: each rank's own batch alone.
  std::vector<ReferenceStatistics> own_statistics;
  std::vector<ReferenceResult> own_want;
};

struct SolvedProblem {
  BatchNormProblem problem;
  ReferenceLayer layer;
  Precision precision;
  DataType statistics_type = DataType::kFloat32;
  // The initial running statistics: [c].
  std::vector<double> first_mean;
  std::vector<double> first_variance;
  std::vector<SolvedStep> steps;  // kSteps entries.

  ActivationShape ShapeOf(int step, int rank, Layout layout) const;
};

// Returns the problem's inputs with their reference. Channel c of rank r is
// roughly normal, with its own mean and deviation. Each rank shifts its values
// by another amount, so that one rank's statistics differ from the whole
// batch's. A spike or a drift is added if the problem asks for one.
//
// Upstream gradients are random. They have a mean and a part that follows x, so
// that neither dx nor the gradients of the parameters vanish. An upstream
// gradient is 0 if rounding decides whether ReLU lets it through.
SolvedProblem SolveProblem(const BatchNormProblem& problem);

// Checks that the reference can reject a wrong value in every channel:
//
//   - A bound on y is at most half of the channel's deviation, or half of the
//     value's distance from the mean if that is larger.
//   - Bounds on dx and dweight are at most a quarter of the terms that these
//     gradients consist of.
//   - At most a third of the channels have dx or a parameter's gradient near
//     zero by chance. Channels that ReLU closes have no gradients, but at least
//     one channel must have some.
//
// Channels with fewer than four values are not checked, because their dx
// vanishes. Error: kInternal, which names the channel.
absl::Status CheckMeaning(const SolvedProblem& solved);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_SOLVED_PROBLEM_H_
