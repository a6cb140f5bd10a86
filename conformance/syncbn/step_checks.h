// One step of a run on all ranks, beside what must have come of it; and what a
// wrong result looks like: the causes that would give it.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
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

// Each returns ", as if ..." for the first cause that fits the numbers within
// four times their bounds, or else "". They look at the inputs and the
// reference of a step, and at `got` in place of what the ranks have. A cause
// whose numbers would not be rejected, or that come no closer, explains
// nothing.

// y of one channel on one rank. got: [n, c, hw] of the rank; which of it was
// never written is told by the rank's bytes.
std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got);

// dx, likewise.
std::string CauseOfInputGradient(const StepView& view, int rank,
                                 int64_t channel, std::span<const double> got);

// Running statistics [c] of one rank before a batch of weight `weight` entered.
struct RunningBefore {
  std::vector<double> mean;
  std::vector<double> variance;
  int64_t batches = 0;
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

// What may have been computed instead: a cause, and what it makes of element i,
// which is of channel c.
struct Alternative {
  std::string name;
  std::function<double(size_t i, size_t c)> value;
  // How many times the bounds of a channel are larger by it; once, if null.
  std::function<double(size_t c)> stretch = nullptr;
};

// ", as if NAME" of the alternative that comes closest to all numbers [..,
// channels, hw], if it fits them, or else "": each is off by no more than
// four times its bound, which may be of a smaller number; in bounds, none is
// off by as much as the worst is from `want`; and the alternative's own numbers
// are not within the bounds of `want`, or it would explain what is right.
std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Alternative>& alternatives);

// ", as if only the first 64 channels were computed", if `channel` is not one
// of them, those are right, and of each other one more than half is wrong, or
// else "".
std::string FirstChannelsOnly(std::span<const double> got, const Bounded& want,
                              int64_t hw, int64_t channels, int64_t channel);

// ", as if it had not been written ...", if every number that is wrong is
// `unwritten`: its bytes are those that the memory held before; or else "". A
// NaN that was computed has others.
std::string NotWritten(std::span<const double> got, const Bounded& want,
                       const std::vector<bool>& unwritten);

// Mean and variance that each channel may have been normalised with.
struct ChannelMoments {
  std::vector<double> mean;
  std::vector<double> variance;
};

ChannelMoments MomentsOf(const ReferenceStatistics& statistics);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
