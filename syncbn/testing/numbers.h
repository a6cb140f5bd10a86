// Gives tests access to elements of every activation type as float64, and to
// statistics records in host memory. Computes batch norm's operations on them.
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

// Element i of a buffer in host memory, aligned or not. SetNumber rounds to the
// buffer's type, one of IsActivationType.
double GetNumber(ConstBuffer buffer, int64_t i);
void SetNumber(Buffer buffer, int64_t i, double value);

// Returns the nearest number that `type` can represent.
double RoundTo(DataType type, double value);
std::vector<double> RoundedTo(DataType type, std::vector<double> values);

// Returns the largest relative error of rounding to `type`: 2^-53, 2^-24, 2^-11
// or 2^-8.
double UnitRoundoff(DataType type);
// Returns the largest error of rounding x to `type`.
double RoundingError(DataType type, double x);

// A statistics record in host memory. `second` is M2, or the inverse deviation.
struct RecordAccess {
  RecordAccess(const StatisticsRecord& record, std::byte* memory);

  int64_t count() const { return StatisticsRecord::Count(memory); }
  void set_count(int64_t count) const;

  std::byte* memory;
  Buffer mean;
  Buffer second;
};

// Return the place of element (n, c, i), and the channel of the element at
// `place`.
int64_t PlaceOf(const ActivationShape& shape, int64_t n, int64_t c, int64_t i);
int64_t ChannelOf(const ActivationShape& shape, int64_t place);

// Convert values [n, c, hw] to the order of the shape's layout, and back.
std::vector<double> ToLayout(const ActivationShape& shape,
                             std::span<const double> nchw);
std::vector<double> FromLayout(const ActivationShape& shape,
                               std::span<const double> values);

// Returns the largest absolute value; 0 if there are no values.
double Largest(const std::vector<double>& values);

// The operations of batch norm as loops in float64, one number at a time. Tests
// compare other layers with this independent one. Host memory; no state.
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
