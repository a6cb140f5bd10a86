// Sum and count travel together, as integers.
#include "models/average_meter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/exact_sum.h"

namespace lockstep {

void AverageMeter::Update(double value, int64_t count) {
  sum_.Add(value, count);
  count_ += count;
  last_ = value;
}

void AverageMeter::UpdateSum(double sum, int64_t count) {
  sum_.Add(sum);
  count_ += count;
  last_ = sum / static_cast<double>(count);
}

double AverageMeter::average() const {
  // Not 0 / 0, the sign of whose NaN is the compiler's choice.
  if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return sum() / static_cast<double>(count_);
}

absl::StatusOr<AverageMeter> AllReduceMeter(Communicator& communicator,
                                            const AverageMeter& meter) {
  AverageMeter all = meter;
  const std::span<int64_t> sum = all.sum_.Words();
  std::array<int64_t, ExactSum::kWords + 1> words;
  std::copy(sum.begin(), sum.end(), words.begin());
  words.back() = meter.count_;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(words));
  std::copy(words.begin(), words.end() - 1, sum.begin());
  all.count_ = words.back();
  return all;
}

}  // namespace lockstep
