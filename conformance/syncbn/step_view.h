// One step of a run on all ranks, beside its reference.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {

// An error and its bound.
struct BoundedError {
  double error = 0;
  double bound = 1;
};

// A step of a run. Borrows everything that it refers to.
struct StepView {
  const SolvedProblem& solved;
  const BatchNormVariant& variant;
  std::span<const RankRun> ranks;
  int step;
  // The error that is largest relative to its bound. MeasureRun keeps it here.
  BoundedError* largest = nullptr;

  const SolvedStep& solved_step() const {
    return solved.steps[static_cast<size_t>(step)];
  }
  const ReferenceBatch& BatchOn(int rank) const {
    return solved_step().ranks[static_cast<size_t>(rank)];
  }
  int world_size() const { return solved.problem.world_size; }
  bool tracked() const { return variant.tracking != Tracking::kNone; }
  const RankOutputs& Of(int rank) const {
    return ranks[static_cast<size_t>(rank)][static_cast<size_t>(step)];
  }
  // Whether a rank normalises with its own batch alone.
  bool UsesOwn() const { return !solved_step().training && !tracked(); }
  const ReferenceStatistics& StatisticsOn(int rank) const {
    return UsesOwn() ? solved_step().own_statistics[static_cast<size_t>(rank)]
                     : solved_step().statistics;
  }
  // Returns the statistics of a rank's batch alone, in training too.
  ReferenceStatistics OwnStatisticsOf(int rank) const {
    return StatisticsOf(solved.layer, {&BatchOn(rank), 1}, solved.precision);
  }
  const ReferenceResult& WantOn(int rank) const {
    return UsesOwn() ? solved_step().own_want[static_cast<size_t>(rank)]
                     : solved_step().want;
  }
  size_t IndexOf(int rank) const {
    return UsesOwn() ? 0 : static_cast<size_t>(rank);
  }
  bool MustRefuse(int rank) const {
    return variant.semantics.refuses_one_value && StatisticsOn(rank).count == 1;
  }
  std::vector<double> Activations(int rank, const std::string& bytes) const {
    return FromLayout(solved.ShapeOf(step, rank, variant.layout),
                      Decode(solved.problem.type, bytes));
  }
  std::vector<double> Statistics(const std::string& bytes) const {
    return Decode(solved.statistics_type, bytes);
  }
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STEP_VIEW_H_
