// The interface of batch normalisation: of a rank's own batch, or of the batch
// of all ranks together.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"

namespace lockstep {

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
  // or the layer or overlaps, for shapes of more than 2^63 - 1 bytes, and for
  // one value per channel where the batch's own statistics are due and the
  // semantics refuse it; kUnimplemented for a type that the implementation
  // lacks; those of the device and of communication.
  virtual absl::Status Forward(const Forwards& buffers) = 0;

  // Writes dx, and dresidual, dweight and dbias where they are there; calls
  // `gradients_ready` once dweight and dbias are final (on a device: enqueued),
  // before it waits for other ranks. Errors as above.
  virtual absl::Status Backward(const Backwards& buffers,
                                absl::FunctionRef<void()> gradients_ready) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_H_
