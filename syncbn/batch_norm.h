// Batch normalisation, of a rank's own batch or of the batch of all ranks
// together: the interface of a layer, how its activations lie in memory, its
// options, and what the frameworks mean by them where they differ.
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

// The channels of one block of Layout::kNchw16c.
inline constexpr int64_t kChannelBlock = 16;

// The place of element (n, c, i) of c_size channels of hw pixels.
enum class Layout {
  kNchw,     // Channels first: (n * c_size + c) * hw + i.
  kNhwc,     // Channels last: (n * hw + i) * c_size + c.
  kNchw16c,  // Blocks of 16 channels, each with its channels last:
             // ((n * (c_size / 16) + c / 16) * hw + i) * 16 + c % 16. It needs
             // a c_size that 16 divides. oneDNN's convolutions have it on
             // processors with AVX-512.
};

// "nchw", "nhwc", "nchw16c".
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

// n samples of c channels of hw pixels (or none, with hw = 1), contiguous.
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

// The types that activations may have: float32, float16, bfloat16, and on the
// CPU float64.
constexpr bool IsActivationType(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16 || type == DataType::kFloat64;
}

// What statistics, parameters and their gradients are held in for activations
// of `type`: float64 for float64, else float32.
constexpr DataType StatisticsTypeOf(DataType type) {
  return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

// A profile: what one framework means. The profiles differ in these fields
// alone, which one implementation reads.
struct BatchNormSemantics {
  // What `momentum` is the weight of when a batch enters a running statistic.
  enum class MomentumOf {
    kBatch,    // running = (1 - momentum) * running + momentum * batch.
    kRunning,  // running = momentum * running + (1 - momentum) * batch.
  };

  absl::string_view name;
  MomentumOf momentum_of = MomentumOf::kBatch;
  double default_momentum = 0;
  // Whether the variance that enters the running variance is M2 / (n - 1) over
  // the global n, or M2 / n. Normalising always divides by n.
  bool unbiased_running_variance = false;
  // Whether normalising one value per channel, over all ranks, with its own
  // statistics is an error; else its variance is 0.
  bool refuses_one_value = false;
};

// torch.nn.BatchNorm2d and SyncBatchNorm.
inline constexpr BatchNormSemantics kTorchBatchNorm = {
    .name = "torch",
    .momentum_of = BatchNormSemantics::MomentumOf::kBatch,
    .default_momentum = 0.1,
    .unbiased_running_variance = true,
    .refuses_one_value = true};

// paddle.nn.BatchNorm2D and SyncBatchNorm, but for Paddle's mean of the ranks'
// means: ranks are weighted by their counts here.
inline constexpr BatchNormSemantics kPaddleBatchNorm = {
    .name = "paddle",
    .momentum_of = BatchNormSemantics::MomentumOf::kRunning,
    .default_momentum = 0.9,
    .unbiased_running_variance = false,
    .refuses_one_value = false};

inline constexpr BatchNormSemantics kAllBatchNormSemantics[] = {
    kTorchBatchNorm, kPaddleBatchNorm};

// The profile of that name.
std::optional<BatchNormSemantics> ParseBatchNormSemantics(
    absl::string_view name);

// What one batch norm layer is.
struct BatchNormOptions {
  int64_t channels = 1;
  BatchNormSemantics semantics = kTorchBatchNorm;
  double epsilon = 1e-5;  // Added to the variance before its root is taken.
  // In [0, 1], with the meaning that the semantics give it. Without a value the
  // running statistics are the plain average over all batches so far.
  std::optional<double> momentum = kTorchBatchNorm.default_momentum;
  bool affine = true;               // y = weight * normalised + bias.
  bool track_running_stats = true;  // Else evaluation uses the batch's own.
};

// Errors: kInvalidArgument, naming the field and its value: channels outside
// [1, 2^31 - 1], an epsilon that is negative or not finite, a momentum outside
// [0, 1].
absl::Status CheckBatchNormOptions(const BatchNormOptions& options);

// The weight w of a batch in running = (1 - w) * running + w * batch. batches:
// how many have entered, this one included; at least 1.
double WeightOfBatch(const BatchNormOptions& options, int64_t batches);

// Running mean and variance [c], of the statistics type; both empty in a layer
// that does not track them. In the memory space of the activations, but for
// `batches`, which is host memory.
struct RunningStatistics {
  Buffer mean;
  Buffer variance;
  int64_t* batches = nullptr;  // How many have entered: num_batches_tracked.

  bool tracked() const { return mean.count > 0; }
};

// One batch norm layer of one replica:
//
//   y = (x - mean) / sqrt(variance + epsilon) * weight + bias
//
// per channel, then perhaps + residual, then perhaps ReLU. In training, mean
// and variance are those of the batch; in evaluation those that are tracked, or
// else those of this rank's own batch.
//
// All memory is the caller's: host memory, or device memory of the
// implementation's device. Activations are of one type (IsActivationType) and
// aligned to their elements; weight, bias and all statistics are [c] of
// StatisticsTypeOf it. What a call writes, and running statistics in any case,
// overlaps nothing else that it uses, but may be all of the same memory where
// that is said. Arithmetic is in the type of statistics, each output rounded
// once. No state is kept between calls but scratch space, so that one layer may
// run forward several times before it runs backward. Not thread safe.
class BatchNorm {
 public:
  struct Forwards {
    ActivationShape shape;  // Of x, residual and y.
    bool training = true;
    bool relu = false;     // max(0, .) at the end; NaN stays NaN.
    ConstBuffer x;         // Left as it was.
    ConstBuffer residual;  // Added before ReLU; empty: none.
    ConstBuffer weight;    // Empty in a layer that is not affine: 1.
    ConstBuffer bias;      // Likewise: 0.
    RunningStatistics running;
    Buffer y;      // Overwritten; may be the same memory as x or residual.
    Buffer saved;  // uint8 [SavedBytes]; for Backward. Aligned to 16.
  };

  struct Backwards {
    ActivationShape shape;  // Of x, y, dy, dx and dresidual.
    bool training = true;   // As it was forward.
    bool relu = false;      // Likewise.
    ConstBuffer x;          // As forward had it.
    ConstBuffer y;          // As forward left it; needed with ReLU alone.
    ConstBuffer dy;         // The gradient of y; left as it was.
    ConstBuffer weight;     // As forward had it.
    ConstBuffer saved;      // As forward left it.
    // This rank's part of the gradients of weight and bias: those of all ranks
    // add up to the layer's, as any other parameter's do. Empty if not affine.
    Buffer dweight;
    Buffer dbias;
    Buffer dx;         // Overwritten; may be the same memory as dy.
    Buffer dresidual;  // Overwritten; may be the same memory as dy, if dx is
                       // not. Empty: not wanted.
  };

  virtual ~BatchNorm() = default;

  // Bytes of `saved` for activations of `type`.
  virtual int64_t SavedBytes(DataType type) const = 0;

  // Writes y and `saved`, and in training the running statistics. If the batch
  // is empty, on all ranks together where they share it, nothing is tracked.
  // Errors: kInvalidArgument, naming it, for memory that does not fit the shape
  // or the layer or overlaps, for shapes of more than 2^63 - 1 bytes, for
  // kNchw16c of channels that 16 does not divide, and for one value per channel
  // where the batch's own statistics are due and the semantics refuse it;
  // kUnimplemented for a type or a layout that the implementation lacks; those
  // of the device and of communication.
  virtual absl::Status Forward(const Forwards& buffers) = 0;

  // Writes dx, and dresidual, dweight and dbias where they are there; calls
  // `gradients_ready` once dweight and dbias are final (on a device: enqueued),
  // before it waits for other ranks. Errors as above.
  virtual absl::Status Backward(const Backwards& buffers,
                                absl::FunctionRef<void()> gradients_ready) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_H_
