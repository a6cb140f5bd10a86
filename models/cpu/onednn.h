// A wrapper of oneDNN for the plans: primitive descriptors, primitives on plain
// pointers, and oneDNN's errors as statuses.
#ifndef LOCKSTEP_MODELS_CPU_ONEDNN_H_
#define LOCKSTEP_MODELS_CPU_ONEDNN_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"

// oneDNN 2 and oneDNN 3 make primitive descriptors differently. Only these
// functions depend on the version. They throw dnnl::error.
namespace lockstep::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

// The element-wise function applied to an operation's result: y = relu(scale *
// result).
struct PostOps {
  bool relu = false;
  float scale = 1;
};

// Returns attributes for `after`, with scratch space from the caller.
dnnl::primitive_attr Attributes(const PostOps& after);

// Create the descriptors of primitive P. oneDNN 2 describes an operation
// (P::desc) and then the primitive for it, with attributes before the engine;
// oneDNN 3 does both at once. `args` are the same in both versions. forward:
// the descriptor of the forward primitive.
template <typename P, typename... Args>
typename P::primitive_desc Forward(const dnnl::engine& engine,
                                   const PostOps& after, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, args..., Attributes(after)};
#else
  return {typename P::desc(args...), Attributes(after), engine};
#endif
}

template <typename P, typename Hint, typename... Args>
typename P::primitive_desc Backward(const dnnl::engine& engine,
                                    const Hint& forward, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, args..., forward, Attributes({})};
#else
  return {typename P::desc(args...), Attributes({}), engine, forward};
#endif
}

// A convolution of x to y. bias: empty if the convolution has none.
struct Convolution {
  Desc x, y, bias;
  Dims weights;  // [out, in, height, width].
  Dims stride, padding;
};
// Create the descriptors of a convolution. Weights have the type of x, in the
// format that the primitive prefers; their gradients are float32. relu: whether
// a ReLU follows the convolution.
dnnl::convolution_forward::primitive_desc ConvolutionForward(
    const dnnl::engine& engine, dnnl::algorithm algorithm,
    const Convolution& convolution, bool relu);
dnnl::convolution_backward_weights::primitive_desc ConvolutionWeights(
    const dnnl::convolution_forward::primitive_desc& forward,
    const dnnl::engine& engine, dnnl::algorithm algorithm,
    const Convolution& convolution);
dnnl::convolution_backward_data::primitive_desc ConvolutionData(
    const dnnl::convolution_forward::primitive_desc& forward,
    const dnnl::engine& engine, dnnl::algorithm algorithm,
    const Convolution& convolution);

// A blocked format. The value at index x[d] of each dimension d lies in the
// outer block x[d] / (product of d's inner blocks). Within an outer block,
// inner blocks are contiguous, the first one outermost.
struct Blocking {
  dnnl::memory::data_type type;
  Dims dims;
  Dims padded;   // dims, rounded up to whole blocks.
  Dims strides;  // The strides of outer blocks, in values.
  Dims inner_sizes;
  Dims inner_dims;  // The dimension of each inner block.
};
// Returns the blocking of `desc`. Returns no value if the format is not blocked
// or holds other values too.
std::optional<Blocking> BlockingOf(const Desc& desc);

// Returns whether oneDNN has Winograd for float32 in kNchw16c, forward and for
// both gradients.
bool HasWinograd();

// Returns whether oneDNN computes in bfloat16 on this machine.
bool HasBFloat16();

// The windows of a pooling operation from x to y.
struct Window {
  Dims kernel, stride, padding_before, padding_after;
};
dnnl::pooling_forward::primitive_desc PoolForward(const dnnl::engine& engine,
                                                  bool maximum, const Desc& x,
                                                  const Desc& y,
                                                  const Window& window);
dnnl::pooling_backward::primitive_desc PoolBackward(
    const dnnl::pooling_forward::primitive_desc& forward,
    const dnnl::engine& engine, bool maximum, const Desc& x, const Desc& y,
    const Window& window);

// Create the descriptors of an element-wise operation. The gradient of ReLU is
// computed from its output.
dnnl::eltwise_forward::primitive_desc EltwiseForward(const dnnl::engine& engine,
                                                     dnnl::algorithm algorithm,
                                                     const Desc& x);
dnnl::eltwise_backward::primitive_desc EltwiseBackward(
    const dnnl::eltwise_forward::primitive_desc& forward,
    const dnnl::engine& engine, dnnl::algorithm algorithm, const Desc& x);

// Create the descriptors of a softmax over dimension `last`, which is the last
// one.
dnnl::softmax_forward::primitive_desc SoftmaxForward(const dnnl::engine& engine,
                                                     const Desc& x, int last);
dnnl::softmax_backward::primitive_desc SoftmaxBackward(
    const dnnl::softmax_forward::primitive_desc& forward,
    const dnnl::engine& engine, const Desc& x, int last);

// Create the descriptors of layer norm over the last dimension, with weight and
// bias. The statistics are kept for the backward pass.
dnnl::layer_normalization_forward::primitive_desc LayerNormForward(
    const dnnl::engine& engine, const Desc& x, float epsilon);
dnnl::layer_normalization_backward::primitive_desc LayerNormBackward(
    const dnnl::layer_normalization_forward::primitive_desc& forward,
    const dnnl::engine& engine, const Desc& x, float epsilon);

}  // namespace lockstep::onednn

namespace lockstep {

// Calls `body` and turns dnnl::error into kInternal: "<layer>: oneDNN: ...".
absl::Status CatchOnednn(const std::string& layer,
                         absl::FunctionRef<void()> body);

dnnl::memory::data_type OnednnType(DataType type);

// Returns the descriptor of activations of `shape`: dimensions n, c, h, w. If c
// is not a multiple of the channel block, kNchw16c means the input of a
// network, which is stored plane by plane.
dnnl::memory::desc Activations(const Shape& shape, DataType type,
                               Layout layout);
// Return the descriptors of `rows` contiguous rows of `columns` values, and of
// one contiguous run of `size` values.
dnnl::memory::desc Rows(int64_t rows, int64_t columns, DataType type);
dnnl::memory::desc Flat(int64_t size, DataType type);

// Returns the descriptor's size, rounded up as in models/program/step_memory.h.
int64_t AlignedBytes(const dnnl::memory::desc& desc);

// A primitive and the memory objects of its arguments, both created once.
// Throws dnnl::error. Not thread safe.
class Primitive {
 public:
  using Args = std::initializer_list<std::pair<int, dnnl::memory::desc>>;

  Primitive() = default;
  Primitive(const dnnl::engine& engine, const dnnl::primitive& primitive,
            Args args);

  // Points each named argument (DNNL_ARG_...) at its memory, runs, and returns
  // when the primitive has finished. Outputs are written although their
  // pointers are const. A null pointer means an argument without elements.
  void Run(dnnl::stream& stream,
           std::initializer_list<std::pair<int, const void*>> pointers);

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> args_;
};

// A copy from one format or type to another. For example, a parameter is copied
// from its plain format in Parameters to the format of a primitive. Throws
// dnnl::error.
class Reorder {
 public:
  Reorder() = default;
  Reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
          const dnnl::memory::desc& to);

  // Returns whether the two formats are the same, so that no copy is needed.
  bool is_identity() const { return identity_; }

  // Overwrites `to`. Requires !is_identity().
  void Run(dnnl::stream& stream, const void* from, void* to);
  // Returns `from` if is_identity(). Otherwise copies `from` to `to` and
  // returns `to`.
  const void* RunIfNeeded(dnnl::stream& stream, const void* from, void* to);

 private:
  bool identity_ = true;
  Primitive reorder_;
};

// Computes to[i] = a[i] + b[i] for i in [0, size), all of one type. `to` may be
// a or b.
class Sum {
 public:
  Sum() = default;
  Sum(const dnnl::engine& engine, int64_t size, DataType type);
  void Run(dnnl::stream& stream, const void* a, const void* b, void* to);

 private:
  Primitive sum_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_ONEDNN_H_
