// Elements of every type of activations as float64, and statistics records in
// host memory: what tests set and read; and batch norm's operations on them.
#ifndef LOCKSTEP_SYNCBN_TESTING_NUMBERS_H_
#define LOCKSTEP_SYNCBN_TESTING_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Element i of a buffer in host memory, aligned or not. Setting rounds to the
// buffer's type, one of IsActivationType.
double GetNumber(ConstBuffer buffer, int64_t i);
void SetNumber(Buffer buffer, int64_t i, double value);

// The nearest number that `type` can hold.
double RoundTo(DataType type, double value);
std::vector<double> RoundedTo(DataType type, std::vector<double> values);

// 2^-53, 2^-24, 2^-11 or 2^-8: how far rounding to `type` moves a number,
// relative to it.
double UnitRoundoff(DataType type);
// How far rounding to `type` may move x.
double RoundingError(DataType type, double x);

// A record in host memory. `second` is M2, or the inverse deviation.
struct RecordAccess {
  RecordAccess(const StatisticsRecord& record, std::byte* memory);

  int64_t count() const { return StatisticsRecord::Count(memory); }
  void set_count(int64_t count) const;

  std::byte* memory;
  Buffer mean;
  Buffer second;
};

// Where element (n, c, i) lies, and the channel of the element that lies at
// `place`.
int64_t PlaceOf(const ActivationShape& shape, int64_t n, int64_t c, int64_t i);
int64_t ChannelOf(const ActivationShape& shape, int64_t place);

// Values [n, c, hw] in the order of the shape's layout, and back.
std::vector<double> ToLayout(const ActivationShape& shape,
                             std::span<const double> nchw);
std::vector<double> FromLayout(const ActivationShape& shape,
                               std::span<const double> values);

// The largest absolute value; 0 of none.
double Largest(const std::vector<double>& values);

// The operations of batch norm as loops in float64, one number at a time: an
// independent layer to check. Host memory; no state.
class PlainKernels : public BatchNormKernels {
 public:
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::Status Merge(const MergeCall& call) override;
  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override;
  absl::Status UseRunning(const RunningCall& call) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call) override;
  absl::Status BackwardInput(const BackwardCall& call) override;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_NUMBERS_H_
