// One step of a run on all ranks, beside its reference. Also the causes that
// explain a wrong result.
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

// Each function returns ", as if ..." for the cause that fits best, or "". A
// fit is off by less than four times the numbers' bounds. The inputs are those
// of a step's reference, with `got` in place of the ranks' outputs. A cause
// explains nothing if the checks would accept its numbers, or if they are no
// closer to `got` than the reference is.

// Explains y of one channel on one rank. got: [n, c, hw] of the rank. The
// rank's bytes tell which elements were never written.
std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got);

// Explains dx, likewise.
std::string CauseOfInputGradient(const StepView& view, int rank,
                                 int64_t channel, std::span<const double> got);

// The running statistics [c] of one rank before a batch entered with `weight`.
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

// Explains a parameter's gradient [c], summed over ranks. `gradient` is the
// field of the reference. own: the gradient of rank 0 alone.
std::string CauseOfParameterGradient(const StepView& view, const Bounded& want,
                                     Bounded ReferenceResult::*gradient,
                                     std::span<const double> own,
                                     std::span<const double> got);

// Explains dresidual of one rank, [n, c, hw]. The fit is exact to the bit.
std::string CauseOfResidualGradient(const StepView& view, int rank,
                                    std::span<const double> got);

// A computation that may have replaced the right one: its cause, and its value
// for element i of channel c.
struct Alternative {
  std::string name;
  std::function<double(size_t i, size_t c)> value;
  // The factor by which the alternative stretches a channel's bounds; 1 if
  // null.
  std::function<double(size_t c)> stretch = nullptr;
};

// Returns ", as if NAME" of the alternative that comes closest to all numbers
// [.., channels, hw], or "" if none fits. An alternative fits under three
// conditions:
//
//   - Each number is off by less than four times its bound, which includes the
//     rounding of the alternative's own value.
//   - In bounds, no number is off by as much as the worst is from `want`.
//   - The alternative's own numbers are not within the bounds of `want`.
//     Otherwise it would explain a right result.
std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Alternative>& alternatives);

// Returns ", as if only the first 64 channels were computed", or "". The cause
// applies if `channel` is not among these 64, all of their numbers are right,
// and more than half of each other channel is wrong.
std::string FirstChannelsOnly(std::span<const double> got, const Bounded& want,
                              int64_t hw, int64_t channels, int64_t channel);

// Returns ", as if it had not been written ...", if every wrong number is
// `unwritten`: its bytes are those that the memory held before. Otherwise
// returns "". A computed NaN has other bytes.
std::string NotWritten(std::span<const double> got, const Bounded& want,
                       const std::vector<bool>& unwritten);

// The mean and variance that each channel may have been normalised with.
struct ChannelMoments {
  std::vector<double> mean;
  std::vector<double> variance;
};

ChannelMoments MomentsOf(const ReferenceStatistics& statistics);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STEP_CHECKS_H_
