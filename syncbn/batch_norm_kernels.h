// The operations of batch norm on one device.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/host_device.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

// The count, the mean and the sum of squared deviations of a set of numbers. If
// count is 0, mean and m2 are 0. The CPU's loops, the CUDA kernels and the
// merge over ranks use this type. T: float or double.
template <typename T>
struct Moments {
  int64_t count = 0;
  T mean = 0;
  T m2 = 0;  // Sum of (x - mean)^2.
};

// Returns the moments of both sets together (Chan, Golub & LeVeque 1983,
// formulas 2.1 and 2.2; written so that equal means keep their bits). An empty
// set changes nothing, whatever its mean and m2 are.
template <typename T>
LOCKSTEP_HOST_DEVICE constexpr Moments<T> MergeMoments(const Moments<T>& a,
                                                       const Moments<T>& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const int64_t count = a.count + b.count;
  const T delta = b.mean - a.mean;
  const T share = static_cast<T>(b.count) / static_cast<T>(count);
  return {count, a.mean + delta * share,
          a.m2 + b.m2 + delta * delta * static_cast<T>(a.count) * share};
}

// Returns the variance about the mean, divided by n. Returns 0 for an empty
// set.
template <typename T>
LOCKSTEP_HOST_DEVICE constexpr T BiasedVariance(const Moments<T>& moments) {
  return moments.count == 0 ? T{0} : moments.m2 / static_cast<T>(moments.count);
}

// Returns the variance divided by n - 1. Returns NaN for fewer than two
// numbers.
template <typename T>
LOCKSTEP_HOST_DEVICE inline T UnbiasedVariance(const Moments<T>& moments) {
  return moments.count < 2 ? static_cast<T>(NAN)
                           : moments.m2 / static_cast<T>(moments.count - 1);
}

// Returns 1 / sqrt(variance + epsilon).
LOCKSTEP_HOST_DEVICE inline double InverseDeviation(double biased_variance,
                                                    double epsilon) {
  return 1 / std::sqrt(biased_variance + epsilon);
}

// The layout of one rank's message, with count, mean and M2, and of `saved`,
// with count, mean and inverse deviation: an int64 count, padding up to 16
// bytes, then two arrays [c] of the statistics type.
struct StatisticsRecord {
  static constexpr int64_t kHeaderBytes = 16;

  int64_t channels = 1;
  DataType type = DataType::kFloat32;  // The type of the statistics.

  // Returns a multiple of 16, so that records may follow one another.
  constexpr int64_t size_bytes() const {
    return kHeaderBytes + (2 * channels * SizeOf(type) + 15) / 16 * 16;
  }
  constexpr int64_t mean_offset() const { return kHeaderBytes; }
  // Returns the offset of M2, or of the inverse deviation.
  constexpr int64_t second_offset() const {
    return kHeaderBytes + channels * SizeOf(type);
  }

  // Return the arrays of a record, or null for a null record. T is the C++ type
  // of `type`.
  template <typename T, typename Byte>
  auto Mean(Byte* record) const {
    return At<T>(record, mean_offset());
  }
  template <typename T, typename Byte>
  auto Second(Byte* record) const {
    return At<T>(record, second_offset());
  }

  static int64_t Count(const std::byte* record) {
    int64_t count;
    std::memcpy(&count, record, sizeof(count));
    return count;
  }
  // Clears a record and sets its count. The gaps must be cleared because they
  // are saved and sent too.
  void Start(std::byte* record, int64_t count) const {
    std::memset(record, 0, static_cast<size_t>(size_bytes()));
    std::memcpy(record, &count, sizeof(count));
  }

 private:
  template <typename T, typename Byte>
  static auto At(Byte* record, int64_t offset) {
    using Pointer = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
    return record == nullptr ? nullptr
                             : reinterpret_cast<Pointer>(record + offset);
  }
};

// Returns the record of a layer whose activations have `type`.
constexpr StatisticsRecord RecordOf(int64_t channels, DataType type) {
  return {.channels = channels, .type = StatisticsTypeOf(type)};
}

// How a merge updates the running statistics and treats a single value.
struct MergeOptions {
  double epsilon = 0;
  double weight_of_batch = 0;  // The batch's, in the running statistics.
  bool unbiased_running_variance = false;
  bool refuses_one_value = false;
};

// Kernels do not check again what a BatchNorm has checked: sizes, types and
// alignment fit, by precondition. Memory is this device's. On a device all
// calls except ReadCount only enqueue on the stream. Records are aligned to 16.
// Each operation states the bytes of activations that it must move, with B =
// size() * SizeOf(type).
class BatchNormKernels {
 public:
  // Kernels do not use `training`, and use `running` only in ForwardLocal;
  // SyncBatchNorm reads both. `saved` is a record of mean and inverse
  // deviation.
  using NormalizeCall = BatchNorm::ForwardBuffers;
  struct BackwardCall : BatchNorm::BackwardBuffers {
    Buffer sums;  // [2, c] of the statistics type.
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

  // Allocates memory aligned to 64. Errors: kResourceExhausted.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes) = 0;

  // Sets record = count, mean and M2 of each channel of x. Moves B.
  virtual absl::Status ComputeMoments(const ActivationShape& shape,
                                      ConstBuffer x, std::byte* record) = 0;

  // Merges `ranks` contiguous records in their order, in float64, into `saved`.
  // The result then enters the running statistics, if they are tracked. If
  // there are no values at all, `saved` gets mean 0 and inverse deviation 1 /
  // sqrt(epsilon), and nothing enters the running statistics. Nothing enters
  // them either if there is one value and the options refuse that.
  // `running.batches` is not changed.
  virtual absl::Status Merge(const MergeCall& call) = 0;

  // Returns the values per channel that Merge found on all ranks, from `saved`.
  // On a device this waits for the stream, so only callers that need the number
  // call it.
  virtual absl::StatusOr<int64_t> ReadCount(const std::byte* saved) = 0;

  // Sets saved = the statistics with which evaluation normalises: count 0, the
  // running mean, and the inverse deviation of the running variance.
  virtual absl::Status UseRunning(const RunningCall& call) = 0;

  // Sets y = (x - mean) * inverse deviation * weight + bias, then + residual,
  // then ReLU. Moves 2 B, and B for the residual.
  virtual absl::Status Normalize(const NormalizeCall& call) = 0;

  // Let g = dy. With ReLU, let g = dy where y > 0 or y is NaN, and g = 0
  // elsewhere. Sets sums = sum of g, sum of g * (x - mean) * inverse deviation.
  // These are the gradients of bias and weight; they are also written to dbias
  // and dweight, if these are not empty. Moves 2 B, and B for y.
  virtual absl::Status BackwardReduce(const BackwardCall& call) = 0;

  // Sets dx = weight * inverse deviation * (g - sums[0] / count - normalised x
  // * sums[1] / count), with the count of `saved`. If the count is 0, the
  // statistics were constants and dx = weight * inverse deviation * g. Sets
  // dresidual = g, if it is not empty. Moves 3 B, B for y and B for dresidual.
  virtual absl::Status BackwardInput(const BackwardCall& call) = 0;

  // A layer's passes if no other rank takes part in them. The default
  // implementations make the calls that are named here; an override must give
  // the same bits.
  //
  // Calls ComputeMoments of x to `record`, then Merge of that single record to
  // call.saved and call.running, then Normalize, if there are samples.
  virtual absl::Status ForwardLocal(const NormalizeCall& call,
                                    const MergeOptions& options,
                                    std::byte* record);
  // Calls BackwardReduce, then gradients_ready() unless that failed, then
  // BackwardInput, if there are samples.
  virtual absl::Status BackwardLocal(const BackwardCall& call,
                                     absl::FunctionRef<void()> gradients_ready);
};

// The code that all implementations of BatchNorm share.

// Check the preconditions of BatchNorm's callers: channels and sizes, types,
// alignment, no null pointer where there are elements, running statistics and
// weights exactly if the layer has them, and no output that overlaps other
// memory of the call unless that is allowed. `options` have passed
// CheckBatchNormOptions. Errors: kInvalidArgument, with the name of the buffer
// and its fault.
absl::Status CheckForwards(const BatchNormOptions& options,
                           const BatchNorm::ForwardBuffers& buffers);
absl::Status CheckBackwards(const BatchNormOptions& options,
                            const BatchNorm::BackwardBuffers& buffers);

// Returns the error for normalising one value per channel with its own
// statistics, which the semantics refuse.
absl::Status OneValueError();

// Returns how the next batch must be merged into `running`, tracked or not.
MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running);

// Counts a batch of `values` per channel that was merged with MergeOptionsFor,
// if the batch is not empty and `running` is tracked. Errors: OneValueError if
// the semantics refuse the batch.
absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_KERNELS_H_
