// The operations that batch norm is made of, on one device.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

// Where count, mean and M2 lie in one rank's message, and count, mean and
// inverse deviation in `saved`: an int64 count, padding up to 16 bytes, then
// two arrays [c] of the statistics type.
struct StatisticsRecord {
  static constexpr int64_t kHeaderBytes = 16;

  int64_t channels = 1;
  DataType type = DataType::kFloat32;  // Of the statistics.

  // A multiple of 16, so that records may follow one another.
  constexpr int64_t size_bytes() const {
    return kHeaderBytes + (2 * channels * SizeOf(type) + 15) / 16 * 16;
  }
  constexpr int64_t mean_offset() const { return kHeaderBytes; }
  // Of M2, or of the inverse deviation.
  constexpr int64_t second_offset() const {
    return kHeaderBytes + channels * SizeOf(type);
  }

  // The arrays of a record, null for none; T is what `type` names.
  template <typename T>
  const T* Mean(const std::byte* record) const {
    return reinterpret_cast<const T*>(At(record, mean_offset()));
  }
  template <typename T>
  T* Mean(std::byte* record) const {
    return reinterpret_cast<T*>(At(record, mean_offset()));
  }
  template <typename T>
  const T* Second(const std::byte* record) const {
    return reinterpret_cast<const T*>(At(record, second_offset()));
  }
  template <typename T>
  T* Second(std::byte* record) const {
    return reinterpret_cast<T*>(At(record, second_offset()));
  }

 private:
  template <typename Byte>
  static Byte* At(Byte* record, int64_t offset) {
    return record == nullptr ? nullptr : record + offset;
  }
};

// The record of a layer whose activations are of `type`.
constexpr StatisticsRecord RecordOf(int64_t channels, DataType type) {
  return {.channels = channels, .type = StatisticsTypeOf(type)};
}

// What a merge does beside merging.
struct MergeOptions {
  double epsilon = 0;
  double weight_of_batch = 0;  // In the running statistics.
  bool unbiased_running_variance = false;
  bool refuses_one_value = false;
};

// Kernels check nothing that a BatchNorm has checked: sizes, types and
// alignment fit, by precondition. Memory is this device's. On a device calls
// only enqueue on the stream, but for Merge. Records are aligned to 16. Each
// states the activations' bytes it must move: B = size() * SizeOf(type).
class BatchNormKernels {
 public:
  struct NormalizeCall {
    ActivationShape shape;
    bool relu = false;
    ConstBuffer x;
    ConstBuffer residual;              // Empty: none.
    ConstBuffer weight;                // Empty: 1.
    ConstBuffer bias;                  // Empty: 0.
    const std::byte* saved = nullptr;  // Record: mean, inverse deviation.
    Buffer y;                          // May be x or residual.
  };
  struct BackwardCall {
    ActivationShape shape;
    bool relu = false;
    ConstBuffer x;
    ConstBuffer y;  // With relu alone.
    ConstBuffer dy;
    ConstBuffer weight;  // Empty: 1.
    const std::byte* saved = nullptr;
    Buffer sums;       // [2, c] of the statistics type.
    Buffer dweight;    // Empty: not wanted.
    Buffer dbias;      // Likewise.
    Buffer dx;         // May be dy.
    Buffer dresidual;  // Empty: not wanted. May be dy, if dx is not.
  };
  struct MergeCall {
    StatisticsRecord record;
    const std::byte* gathered = nullptr;  // [ranks] records: count, mean, M2.
    int ranks = 1;
    MergeOptions options = {};
    RunningStatistics running = {};
    std::byte* saved = nullptr;  // Record: count, mean, inverse deviation.
  };
  struct RunningCall {
    StatisticsRecord record;
    RunningStatistics running = {};
    double epsilon = 0;
    std::byte* saved = nullptr;
  };

  virtual ~BatchNormKernels() = default;

  // Aligned to 64. Errors: kResourceExhausted.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes) = 0;

  // record = count, mean and M2 of each channel of x. Moves B.
  virtual absl::Status ComputeMoments(const ActivationShape& shape,
                                      ConstBuffer x, std::byte* record) = 0;

  // Merges `ranks` records that lie one after the other, in their order, in
  // float64, to `saved`, and lets them enter the running statistics, if
  // tracked. Of no values at all `saved` has mean 0 and inverse deviation 1 /
  // sqrt(epsilon), and nothing enters; nor does it if there is one value and
  // options say that it is refused. `running.batches` is not touched. Returns
  // the values per channel of all ranks; on a device, waits for them.
  virtual absl::StatusOr<int64_t> Merge(const MergeCall& call) = 0;

  // saved = what evaluation normalises with: count 0, the running mean, and the
  // inverse deviation of the running variance.
  virtual absl::Status UseRunning(const RunningCall& call) = 0;

  // y = (x - mean) * inverse deviation * weight + bias, + residual, ReLU.
  // Moves 2 B, and B for the residual.
  virtual absl::Status Normalize(const NormalizeCall& call) = 0;

  // With g = dy, or with ReLU dy where y > 0 and else 0 (where y is NaN, dy):
  // sums = sum of g, sum of g * (x - mean) * inverse deviation: the gradients
  // of bias and weight, which are written to dbias and dweight too where those
  // are not empty. Moves 2 B, and B for y.
  virtual absl::Status BackwardReduce(const BackwardCall& call) = 0;

  // dx = weight * inverse deviation * (g - sums[0] / count - normalised x *
  // sums[1] / count), with the count of `saved`; of count 0, where the
  // statistics were constants, dx = weight * inverse deviation * g.
  // dresidual = g, if not empty. Moves 3 B, B for y and B for dresidual.
  virtual absl::Status BackwardInput(const BackwardCall& call) = 0;
};

// What all implementations of BatchNorm share (check_batch_norm.cc).

// What BatchNorm asks of its callers: channels and sizes, types, alignment, no
// null where there are elements, running statistics and weights exactly where
// the layer has them, and nothing written over what else the call uses but
// where that is allowed. `options` have passed CheckBatchNormOptions. Errors:
// kInvalidArgument, with the name of the buffer and what is wrong with it.
absl::Status CheckForwards(const BatchNormOptions& options,
                           const BatchNorm::Forwards& buffers);
absl::Status CheckBackwards(const BatchNormOptions& options,
                            const BatchNorm::Backwards& buffers);

// The error of normalising one value per channel with its own statistics, where
// the semantics refuse it.
absl::Status OneValueError();

// How the next batch is to be merged into `running`, tracked or not.
MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running);

// Counts a batch of `values` per channel that has been merged so, if there were
// any and it is tracked. Errors: OneValueError where the semantics refuse it.
absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_
