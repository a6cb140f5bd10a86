// oneDNN, as the layers use it: primitive descriptors, primitives on plain
// pointers, and its errors as statuses.
#ifndef LOCKSTEP_MODELS_CPU_ONEDNN_H_
#define LOCKSTEP_MODELS_CPU_ONEDNN_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "models/cpu/layers.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {

class BatchNormKernels;

// What the layers of one replica share.
struct LayerContext {
  dnnl::engine engine;
  dnnl::stream stream;
  Parameters* parameters;  // Outlives every plan.
  Buffers* buffers;        // Likewise.
  // Over whose ranks batch norm normalises in training; null: this rank's batch
  // alone. Plans keep it.
  Communicator* batch_norm_group = nullptr;
  // What it computes with; outlives every plan.
  BatchNormKernels* batch_norm_kernels = nullptr;
  // Gets these layers as they are planned, in order; may be null.
  PlannedCalls* calls = nullptr;
};

}  // namespace lockstep

// oneDNN 2 and oneDNN 3 make primitive descriptors differently: these functions
// are the only place that knows. All are float32; they throw dnnl::error.
namespace lockstep::onednn {

// Scratch space comes from the caller; ReLU follows the operation if `relu`.
dnnl::primitive_attr Attributes(bool relu);

// The descriptors of primitive P. oneDNN 2 describes an operation (P::desc) and
// then the primitive for it, with attributes before the engine; oneDNN 3 does
// both at once. `args` are the same in both. forward: the descriptor of the
// forward primitive.
template <typename P, typename... Args>
typename P::primitive_desc Forward(const dnnl::engine& engine, bool relu,
                                   const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, args..., Attributes(relu)};
#else
  return {typename P::desc(args...), Attributes(relu), engine};
#endif
}

template <typename P, typename Hint, typename... Args>
typename P::primitive_desc Backward(const dnnl::engine& engine,
                                    const Hint& forward, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, args..., forward, Attributes(false)};
#else
  return {typename P::desc(args...), Attributes(false), engine, forward};
#endif
}

// Average pooling of x to y over windows that do not overlap.
dnnl::pooling_forward::primitive_desc AveragePoolForward(
    const dnnl::engine& engine, const dnnl::memory::desc& x,
    const dnnl::memory::desc& y, const dnnl::memory::dims& window);
dnnl::pooling_backward::primitive_desc AveragePoolBackward(
    const dnnl::pooling_forward::primitive_desc& forward,
    const dnnl::engine& engine, const dnnl::memory::desc& x,
    const dnnl::memory::desc& y, const dnnl::memory::dims& window);

// The gradient of ReLU from its output: dx = y > 0 ? dy : 0.
dnnl::eltwise_backward::primitive_desc ReluBackwardFromOutput(
    const dnnl::engine& engine, const dnnl::memory::desc& y);

}  // namespace lockstep::onednn

namespace lockstep {

// Calls `body` and turns dnnl::error into kInternal: "<layer>: oneDNN: ...".
absl::Status CatchOnednn(const std::string& layer,
                         absl::FunctionRef<void()> body);

// Activations of `shape` as oneDNN sees them: dimensions n, c, h, w, channels
// last.
dnnl::memory::desc ChannelsLast(const Shape& shape);

// Floats that hold `desc`, rounded up so that what follows is 64-byte aligned.
int64_t AlignedSize(const dnnl::memory::desc& desc);
int64_t AlignedSize(int64_t floats);

// A primitive and the memory objects of its arguments, made once. Throws
// dnnl::error. Not thread safe.
class Primitive {
 public:
  Primitive() = default;
  Primitive(const dnnl::engine& engine, const dnnl::primitive& primitive,
            std::initializer_list<std::pair<int, dnnl::memory::desc>> args);

  // Points each named argument (DNNL_ARG_...) at its memory, runs, and returns
  // when done. Inputs are not written, whatever the type says; a null pointer
  // is for an argument without elements.
  void Run(dnnl::stream& stream,
           std::initializer_list<std::pair<int, const float*>> pointers);

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> args_;
};

// A copy from one format to another, as of a parameter between the plain one
// that it has in Parameters and the one that a primitive works in; or a sum.
// Throws dnnl::error.
class Reorder {
 public:
  Reorder() = default;
  Reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
          const dnnl::memory::desc& to)
      : Reorder(engine, from, to, {}) {}

  // One that adds: to[i] += from[i] for i in [0, size).
  static Reorder Sum(const dnnl::engine& engine, int64_t size);

  // Whether there is nothing to do: the formats are the same.
  bool is_identity() const { return identity_; }

  // Overwrites `to`, or adds to it; only if not is_identity().
  void Run(dnnl::stream& stream, const float* from, float* to);

 private:
  Reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
          const dnnl::memory::desc& to, const dnnl::primitive_attr& attributes);

  bool identity_ = true;
  Primitive reorder_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_ONEDNN_H_
