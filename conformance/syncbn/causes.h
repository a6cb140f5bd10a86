// The causes of wrong gradients and running statistics, and the fit of a cause
// to numbers.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bounded.h"
#include "conformance/syncbn/step_view.h"
#include "syncbn/testing/batch_norm_reference.h"

namespace lockstep::conformance {

// Each function returns ", as if ..." for the cause that fits best, or "". A
// fit is off by less than four times the numbers' bounds. The inputs are those
// of a step's reference, with `got` in place of the ranks' outputs. A cause
// explains nothing if the checks would accept its numbers, or if they are no
// closer to `got` than the reference is.

// Explains dx of one channel on one rank. got: [n, c, hw] of the rank. The
// rank's bytes tell which elements were never written.
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

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_CAUSES_H_
