// Batch normalisation, of a rank's own batch or of the batch of all ranks
// together. Defines the interface of a layer, the layouts of its activations,
// its options, and what the options mean in each framework.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// The number of channels in one block of Layout::kNchw16c.
inline constexpr int64_t kChannelBlock = 16;

// The place in memory of element (n, c, i), for c_size channels of hw pixels.
enum class Layout {
  kNchw,     // Channels first: (n * c_size + c) * hw + i.
  kNhwc,     // Channels last: (n * hw + i) * c_size + c.
  kNchw16c,  // Blocks of 16 channels, each with its channels last:
             // ((n * (c_size / 16) + c / 16) * hw + i) * 16 + c % 16. c_size
             // must be a multiple of 16. oneDNN's convolutions use this layout
             // on processors with AVX-512.
};

// Returns "nchw", "nhwc" or "nchw16c".
constexpr const char* Name(Layout layout) {
  switch (layout) {
    case Layout::kNchw:
      return "nchw";
    case Layout::kNhwc:
      return "nhwc";
    case Layout::kNchw16c:
      return "nchw16c";
  }
  return "";
}

// n samples of c channels of hw pixels, contiguous. Without pixels, hw = 1.
struct ActivationShape {
  int64_t n = 0;  // 0 allowed.
  int64_t c = 1;
  int64_t hw = 1;
  Layout layout = Layout::kNchw;

  constexpr int64_t size() const { return n * c * hw; }
  constexpr int64_t values_per_channel() const { return n * hw; }

  friend bool operator==(const ActivationShape&,
                         const ActivationShape&) = default;
};

// Returns whether activations may have the type: float32, float16, bfloat16,
// and on the CPU float64.
constexpr bool IsActivationType(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16 || type == DataType::kFloat64;
}

// Returns the type of statistics, of parameters and of their gradients for
// activations of `type`: float64 for float64, otherwise float32.
constexpr DataType StatisticsTypeOf(DataType type) {
  return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

// A profile: what the options mean in one framework. The profiles differ only
// in these fields, and one implementation reads them.
struct BatchNormSemantics {
  // The term that `momentum` weights when a batch enters a running statistic.
  enum class MomentumOf {
    kBatch,    // running = (1 - momentum) * running + momentum * batch.
    kRunning,  // running = momentum * running + (1 - momentum) * batch.
  };

  absl::string_view name;
  MomentumOf momentum_of = MomentumOf::kBatch;
  double default_momentum = 0;
  // Whether the variance that enters the running variance is M2 / (n - 1), with
  // the global n. If false, it is M2 / n. Normalising always divides by n.
  bool unbiased_running_variance = false;
  // Whether it is an error to normalise a single value per channel, over all
  // ranks, with its own statistics. If false, its variance is 0.
  bool refuses_one_value = false;
};

// The profile of torch.nn.BatchNorm2d and SyncBatchNorm.
inline constexpr BatchNormSemantics kTorchBatchNorm = {
    .name = "torch",
    .momentum_of = BatchNormSemantics::MomentumOf::kBatch,
    .default_momentum = 0.1,
    .unbiased_running_variance = true,
    .refuses_one_value = true};

// The profile of paddle.nn.BatchNorm2D and SyncBatchNorm, with one exception:
// Paddle takes the mean of the ranks' means, and this code weights the ranks by
// their counts.
inline constexpr BatchNormSemantics kPaddleBatchNorm = {
    .name = "paddle",
    .momentum_of = BatchNormSemantics::MomentumOf::kRunning,
    .default_momentum = 0.9,
    .unbiased_running_variance = false,
    .refuses_one_value = false};

inline constexpr BatchNormSemantics kAllBatchNormSemantics[] = {
    kTorchBatchNorm, kPaddleBatchNorm};

// Returns the profile of that name, or nullopt if there is none.
std::optional<BatchNormSemantics> ParseBatchNormSemantics(
    absl::string_view name);

// The options of one batch norm layer.
struct BatchNormOptions {
  int64_t channels = 1;
  BatchNormSemantics semantics = kTorchBatchNorm;
  double epsilon = 1e-5;  // Added to the variance before the root.
  // In [0, 1], with the meaning that the semantics give it. If it is not set,
  // the running statistics are the plain average over all batches so far.
  std::optional<double> momentum = kTorchBatchNorm.default_momentum;
  bool affine = true;  // y = weight * normalised + bias.
  // If false, evaluation uses the batch's own statistics.
  bool track_running_stats = true;
};

// Errors: kInvalidArgument, naming the field and its value, for channels
// outside [1, 2^31 - 1], for an epsilon that is negative or not finite, and for
// a momentum outside [0, 1].
absl::Status CheckBatchNormOptions(const BatchNormOptions& options);

// Returns the weight w of a batch in running = (1 - w) * running + w * batch.
// batches: the number of batches that have entered, this one included; at least
// 1.
double WeightOfBatch(const BatchNormOptions& options, int64_t batches);

// The running mean and variance, each [c], of the statistics type. Both are
// empty in a layer that does not track them. They are in the memory space of
// the activations; `batches` is in host memory.
struct RunningStatistics {
  Buffer mean;
  Buffer variance;
  int64_t* batches = nullptr;  // Batches entered: num_batches_tracked.

  bool tracked() const { return mean.count > 0; }
};

// One batch norm layer of one replica:
//
//   y = (x - mean) / sqrt(variance + epsilon) * weight + bias
//
// per channel, then + residual if there is one, then ReLU if asked for. In
// training, mean and variance are the batch's. In evaluation they are the
// running statistics, or those of this rank's own batch if none are tracked.
//
// The caller owns all memory: host memory, or device memory of the
// implementation's device. Activations have one type (IsActivationType) and are
// aligned to their elements. Weight, bias and all statistics are [c] of that
// type's StatisticsTypeOf. Memory that a call writes, and always the running
// statistics, must not overlap any other memory of the call, except that two
// buffers may be the same memory where this is stated below. Arithmetic is in
// the type of the statistics, and each output is rounded once. Between calls
// only scratch space is kept, so one layer may run forward several times before
// it runs backward. Not thread safe.
class BatchNorm {
 public:
  struct ForwardBuffers {
    ActivationShape shape;  // The shape of x, residual and y.
    bool training = true;
    bool relu = false;     // y = max(0, .) at the end; NaN stays NaN.
    ConstBuffer x;         // Not changed.
    ConstBuffer residual;  // Added before ReLU; empty if there is none.
    ConstBuffer weight;    // Empty in a layer that is not affine: 1.
    ConstBuffer bias;      // Empty in a layer that is not affine: 0.
    RunningStatistics running;
    Buffer y;      // Overwritten; may be the same memory as x or residual.
    Buffer saved;  // uint8 [SavedBytes]; for Backward. Aligned to 16.
  };

  struct BackwardBuffers {
    ActivationShape shape;  // The shape of x, y, dy, dx, dresidual.
    bool training = true;   // The same as in the forward call.
    bool relu = false;      // The same as in the forward call.
    ConstBuffer x;          // The same as in the forward call.
    ConstBuffer y;          // As Forward left it; needed only with ReLU.
    ConstBuffer dy;         // The gradient of y; not changed.
    ConstBuffer weight;     // The same as in the forward call.
    ConstBuffer saved;      // As Forward left it.
    // This rank's part of the gradients of weight and bias. The parts of all
    // ranks add up to the layer's gradient, as for any other parameter. Empty
    // if the layer is not affine.
    Buffer dweight;
    Buffer dbias;
    Buffer dx;         // Overwritten; may be the same memory as dy.
    Buffer dresidual;  // Overwritten; may be the same memory as dy, if dx is
                       // not. Empty if it is not wanted.
  };

  virtual ~BatchNorm() = default;

  // Returns the bytes of `saved` for activations of `type`.
  virtual int64_t SavedBytes(DataType type) const = 0;

  // Writes y and `saved`, and in training the running statistics. If the batch
  // is empty (of all ranks together, if they share it), the running statistics
  // do not change.
  //
  // Errors: kInvalidArgument, naming the cause, for memory that does not fit
  // the shape or the layer or that overlaps, for shapes of more than 2^63 - 1
  // bytes, for kNchw16c with a number of channels that is not a multiple of 16,
  // and for one value per channel if the batch's own statistics are needed and
  // the semantics refuse it; kUnimplemented for a type or a layout that the
  // implementation does not support; the errors of the device and of
  // communication.
  virtual absl::Status Forward(const ForwardBuffers& buffers) = 0;

  // Writes dx, and also dresidual, dweight and dbias if they are not empty.
  // Calls `gradients_ready` once dweight and dbias are final (on a device:
  // enqueued), before it waits for other ranks. Errors: as of Forward.
  virtual absl::Status Backward(const BackwardBuffers& buffers,
                                absl::FunctionRef<void()> gradients_ready) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_H_
