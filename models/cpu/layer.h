// What a layer is on the CPU: something that plans its work for a batch size.
#ifndef LOCKSTEP_MODELS_CPU_LAYER_H_
#define LOCKSTEP_MODELS_CPU_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"

namespace lockstep {

struct LayerContext;  // What the layers of one replica share (onednn.h).

// N images of C channels. Activations lie channels last: element (n, c, h, w)
// is at ((n * H + h) * W + w) * C + c, without gaps.
struct Shape {
  int64_t n = 0;
  int64_t c = 0;
  int64_t h = 1;
  int64_t w = 1;

  int64_t size() const { return n * c * h * w; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// One layer's work on one input shape, prepared once and run every step. All
// memory is the caller's: host float32, 64-byte aligned except for `x` of the
// first layer, channels last. A plan holds no state between calls, so that
// plans for several batch sizes can take turns on the same memory. Not thread
// safe.
class LayerPlan {
 public:
  // The memory of one call, borrowed.
  struct Forwards {
    const float* x;    // [input shape].
    float* y;          // [output()], overwritten.
    float* saved;      // [saved_size()], kept until the backward call.
    float* temporary;  // [temporary_size()], free between calls.
    bool training;     // Else the layer's buffers are used and left alone.
  };
  struct Backwards {
    const float* x;    // As forward had it.
    const float* y;    // As forward left it.
    float* saved;      // As forward left it.
    float* dy;         // [output()], the gradient of y; unspecified afterwards.
    float* dx;         // [input shape], overwritten; null if not planned.
    float* temporary;  // As in Forwards.
  };

  virtual ~LayerPlan() = default;

  virtual const Shape& output() const = 0;
  virtual int64_t saved_size() const = 0;      // Floats.
  virtual int64_t temporary_size() const = 0;  // Floats.

  // Errors: kInternal, naming the layer, if oneDNN fails; those of
  // batch_norm_group, in training.
  virtual absl::Status Forward(const Forwards& buffers) = 0;

  // Overwrites the gradients of the layer's parameters and calls `ready` for
  // each, the highest index first and before dx is computed; a layer of layers
  // does so for one after the other. Errors as above.
  virtual absl::Status Backward(const Backwards& buffers,
                                Model::GradientReady ready) = 0;
};

// A layer's description. It knows its parameters and buffers by their indices;
// it has no other state.
class Layer {
 public:
  virtual ~Layer() = default;

  // How many batch norm layers there are in it.
  virtual int batch_norm_count() const { return 0; }

  // Prepares for `input`, with input.n >= 0: a rank without samples still takes
  // its part in what ranks do together, and has zero gradients. Backward
  // computes dx only if `input_gradient`. Does not communicate. Takes
  // milliseconds: keep the plan. Errors, each naming the layer:
  // kInvalidArgument if the input or the sizes of the parameters do not fit it;
  // kInternal if oneDNN fails.
  virtual absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool input_gradient) const = 0;
};

// The plan of a layer for a batch without samples. It computes nothing:
// backward it zeroes the gradients of `parameters[index]` for each of `indices`
// and calls `ready` for them, in the order given. Borrows `parameters`.
std::unique_ptr<LayerPlan> CreateEmptyPlan(Parameters& parameters,
                                           std::vector<int> indices,
                                           const Shape& output);

// Errors: kInvalidArgument, naming the layer, unless there is a tensor `index`
// and it has the shape `want`.
absl::Status CheckParameter(const std::string& layer,
                            const Parameters& parameters, int index,
                            const std::vector<int64_t>& want);
absl::Status CheckBuffer(const std::string& layer, const Buffers& buffers,
                         int index, const std::vector<int64_t>& want);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LAYER_H_
