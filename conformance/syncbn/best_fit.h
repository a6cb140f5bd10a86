// Which of several mistakes explains wrong numbers.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BEST_FIT_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BEST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_reference.h"

namespace lockstep {

// A mistake, and what it makes of element i, which is of channel c.
struct Mistake {
  std::string name;
  std::function<double(size_t i, size_t c)> value;
  // How many times the bounds of a channel are larger by it; once, if null.
  std::function<double(size_t c)> stretch = nullptr;
};

// ", as if NAME" of the mistake that comes closest to all numbers [..,
// channels, hw], if it explains them, or else "": each is off by no more than
// four times its bound, which may be of a smaller number; in bounds, none is
// off by as much as the worst is from `want`; and the mistake's own numbers are
// not within the bounds of `want`, or they would explain what is no mistake.
std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Mistake>& mistakes);

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

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BEST_FIT_H_
