// The operations that batch norm is made of, on one device.
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
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"

#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep {

// Count, mean and sum of squared deviations of a set of numbers, of which
// count 0 has mean 0 and m2 0. Used by the CPU's loops, by CUDA kernels, and by
// the merge over ranks. T: float or double.
template <typename T>
struct Moments {
  int64_t count = 0;
  T mean = 0;
  T m2 = 0;  // Sum of (x - mean)^2.
};

// The moments of both sets together (Chan, Golub & LeVeque 1983, formulas 2.1
// and 2.2; written so that equal means stay the same bits). A set that is empty
// changes nothing, whatever its mean and m2 are.
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

// Variance about the mean; divided by n. 0 of no numbers.
template <typename T>
LOCKSTEP_HOST_DEVICE constexpr T BiasedVariance(const Moments<T>& moments) {
  return moments.count == 0 ? T{0} : moments.m2 / static_cast<T>(moments.count);
}

// The same divided by n - 1; NaN of fewer than two numbers.
template <typename T>
LOCKSTEP_HOST_DEVICE inline T UnbiasedVariance(const Moments<T>& moments) {
  return moments.count < 2 ? static_cast<T>(NAN)
                           : moments.m2 / static_cast<T>(moments.count - 1);
}

// 1 / sqrt(variance + epsilon).
LOCKSTEP_HOST_DEVICE inline double InverseDeviation(double biased_variance,
                                                    double epsilon) {
  return 1 / std::sqrt(biased_variance + epsilon);
}

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
  // Clears a record, since its gaps are saved and sent too, and sets its count.
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
// only enqueue on the stream, but for ReadCount. Records are aligned to 16.
// Each states the activations' bytes it must move: B = size() * SizeOf(type).
class BatchNormKernels {
 public:
  // Kernels do not use `training`, and `running` in ForwardLocal alone: these
  // are SyncBatchNorm's to read. `saved` is a record of mean and inverse
  // deviation.
  using NormalizeCall = BatchNorm::Forwards;
  struct BackwardCall : BatchNorm::Backwards {
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
  // options say that it is refused. `running.batches` is not touched.
  virtual absl::Status Merge(const MergeCall& call) = 0;

  // The values per channel that Merge found on all ranks, from `saved`. On a
  // device this waits for the stream, so only those ask that must know.
  virtual absl::StatusOr<int64_t> ReadCount(const std::byte* saved) = 0;

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

  // A layer's passes where no other rank has a part in them. The defaults make
  // the calls that are named here; an override gives the same bits.
  //
  // ComputeMoments of x to `record`; Merge of that record alone to call.saved
  // and call.running; Normalize, if there are samples.
  virtual absl::Status ForwardLocal(const NormalizeCall& call,
                                    const MergeOptions& options,
                                    std::byte* record);
  // BackwardReduce; gradients_ready(), unless that failed; BackwardInput, if
  // there are samples.
  virtual absl::Status BackwardLocal(const BackwardCall& call,
                                     absl::FunctionRef<void()> gradients_ready);
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
