// A running average over samples that several ranks can share.
#ifndef LOCKSTEP_MODELS_AVERAGE_METER_H_
#define LOCKSTEP_MODELS_AVERAGE_METER_H_

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/exact_sum.h"

namespace lockstep {

// The average of a metric, weighted by how many samples each update stands for.
// The sum is exact until it is read (ExactSum), so the same updates give the
// same bits in any order and however they are dealt to meters. Not thread safe.
//
// Limit: counts add up to less than 2^63, over all ranks.
class AverageMeter {
 public:
  // Adds the mean `value` of `count` samples. count: at least 0; with 0 only
  // last() changes.
  void Update(double value, int64_t count = 1);

  // Adds `count` samples, at least 1, whose values have the sum `sum`: without
  // the rounding of a mean.
  void UpdateSum(double sum, int64_t count);

  // The value of the last update; NaN before the first.
  double last() const { return last_; }

  // The sum of value * count, rounded once. Cost: as ExactSum::Round.
  double sum() const { return sum_.Round(); }

  int64_t count() const { return count_; }

  // sum() / count(): the sum over samples, not the mean of the updates' means;
  // infinite if the sum is beyond DBL_MAX.
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

// The meter of every rank's updates: sum, count and average have the same bits
// on every rank, and the bits that one meter with all the updates would have,
// at any world size. last() is this rank's own. `meter` stays this rank's part
// and may be updated further. Cost: one AllReduce of 592 bytes. Errors: the
// communicator's.
absl::StatusOr<AverageMeter> AllReduceMeter(Communicator& communicator,
                                            const AverageMeter& meter);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_AVERAGE_METER_H_
