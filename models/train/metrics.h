// Sums and averages whose bits do not depend on which rank adds a number, on
// the order, or on the number of ranks.
#ifndef LOCKSTEP_MODELS_TRAIN_METRICS_H_
#define LOCKSTEP_MODELS_TRAIN_METRICS_H_

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep {

// The sum of float64 numbers without rounding. It is a fixed-point number wide
// enough for every double and for carries: 70 limbs of 32 bits, each in an
// int64_t, with the smallest double, 2^-1074, as the unit (a small
// superaccumulator: Neal 2015, "Fast exact summation using small and large
// superaccumulators"; Kulisch's long accumulator). A sum of integers does not
// depend on the order of the additions, so the bits of Round() do not either:
// the same numbers give the same double however they are divided among
// accumulators. A limb has room for 2^31 - 1 adds before carries must move up;
// the sum moves them in time by itself. Not thread safe.
//
// Infinities and NaN are kept apart from the limbs; minus zero adds nothing.
//
// Limit: the sum of the finite numbers must stay below 2^1166 in magnitude at
// every time. That is room for 2^79 of the largest adds.
class ExactSum {
 public:
  // The size of Words(): the limbs, then whether +inf, -inf and NaN were added.
  static constexpr int kWords = 73;

  // Adds value * times. times: at least 0; with 0 nothing is added, whatever
  // the value. Cost: O(1); once in 2^31 adds, O(kWords).
  void Add(double value, int64_t times = 1);

  // Adds all numbers that were added to `other`, which may be *this.
  ExactSum& operator+=(const ExactSum& other);

  // Returns the sum, rounded once, to nearest even. The result is an infinity
  // from half a unit in the last place beyond DBL_MAX on. Special cases are
  // those of IEEE 754 addition: infinities of one sign give that infinity;
  // infinities of both signs or a NaN give NaN; numbers that cancel give plus
  // zero. The sum of no numbers is plus zero. Cost: O(kWords).
  double Round() const;

  // Returns the accumulator itself, normalised, for a reduction: limbs in [0,
  // 2^32), except the last, which is in [-2^32, 2^32), then three words in {0,
  // 1}. The words do not depend on the order of the adds. Up to 2^31 - 1 such
  // arrays, one for each rank, can be added element by element without
  // overflow. Writing the result to these words makes this accumulator the sum
  // of all. The span is valid as long as *this; write to it only before the
  // next call. Cost: O(kWords).
  std::span<int64_t> Words();

 private:
  static constexpr int kLimbs = 70;
  static constexpr int kPositiveInfinity = kLimbs;
  static constexpr int kNegativeInfinity = kLimbs + 1;
  static constexpr int kNan = kLimbs + 2;
  static_assert(kWords == kNan + 1);
  // A limb takes this many adds, of less than 2^32 each, before it overflows.
  static constexpr int64_t kMaxAdds = (int64_t{1} << 31) - 1;

  void Normalize();

  std::array<int64_t, kWords> words_ = {};
  // No limb is larger in magnitude than adds_ * 2^32.
  int64_t adds_ = 0;
};

// The running average of a metric, weighted by the number of samples of each
// update. The sum is exact until it is read (ExactSum). The same updates
// therefore give the same bits in any order and however they are divided among
// meters. Not thread safe.
//
// Limit: counts add up to less than 2^63, over all ranks.
class AverageMeter {
 public:
  // Adds the mean `value` of `count` samples. count: at least 0; with 0 only
  // last() changes.
  void Update(double value, int64_t count = 1);

  // Adds `count` samples, at least 1, whose values have the sum `sum`. This
  // avoids the rounding of a mean.
  void UpdateSum(double sum, int64_t count);

  // Returns the value of the last update; NaN before the first.
  double last() const { return last_; }

  // Returns the sum of value * count, rounded once. Cost: as ExactSum::Round.
  double sum() const { return sum_.Round(); }

  int64_t count() const { return count_; }

  // Returns sum() / count(): the mean over samples, not the mean of the
  // updates' means. The result is infinite if the sum is beyond DBL_MAX, and
  // NaN if there is no sample, since 0 would look like a perfect loss.
  double average() const;

  void Reset() { *this = AverageMeter(); }

 private:
  friend absl::StatusOr<AverageMeter> AllReduceMeter(Communicator& communicator,
                                                     const AverageMeter& meter);

  ExactSum sum_;
  int64_t count_ = 0;
  double last_ = std::numeric_limits<double>::quiet_NaN();
};

// Returns the meter of every rank's updates. Its sum, count and average have
// the same bits on every rank. They are the bits of one meter with all the
// updates, at any world size. last() is this rank's own. `meter` stays this
// rank's part and may be updated further. Cost: one AllReduce of 592 bytes.
// Errors: the communicator's.
absl::StatusOr<AverageMeter> AllReduceMeter(Communicator& communicator,
                                            const AverageMeter& meter);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_METRICS_H_
