// One step of a run on all ranks, beside what must have come of it, and its
// checks.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"

namespace lockstep {

// An error and its bound.
struct BoundedError {
  double error = 0;
  double bound = 1;
};

// Borrows all of it.
struct StepView {
  const SolvedProblem& solved;
  const BatchNormVariant& variant;
  std::span<const RankRun> ranks;
  int step;
  // Where MeasureRun keeps the error that is largest beside its bound.
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
  // Of a rank's batch alone, in training too.
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
