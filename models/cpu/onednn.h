// oneDNN, as the plans use it: primitive descriptors, primitives on plain
// pointers, and its errors as statuses.
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

// oneDNN 2 and oneDNN 3 make primitive descriptors differently: these functions
// are the only place that knows. They throw dnnl::error.
namespace lockstep::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

// What follows an operation: y = relu(scale * result).
struct After {
  bool relu = false;
  float scale = 1;
};

// Scratch space comes from the caller.
dnnl::primitive_attr Attributes(const After& after);

// The descriptors of primitive P. oneDNN 2 describes an operation (P::desc) and
// then the primitive for it, with attributes before the engine; oneDNN 3 does
// both at once. `args` are the same in both. forward: the descriptor of the
// forward primitive.
template <typename P, typename... Args>
typename P::primitive_desc Forward(const dnnl::engine& engine,
                                   const After& after, const Args&... args) {
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

// A convolution of x to y. bias: empty if there is none.
struct Convolution {
  Desc x, y, bias;
  Dims weights;  // [out, in, height, width].
  Dims stride, padding;
};
// Weights are of the type of x in the format that the primitive wants, and
// their gradients float32. relu: after it.
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

// A format of blocks. The value at index x[d] of each dimension d lies in the
// outer block x[d] / (d's inner blocks); in it, inner blocks are without gaps,
// the first the outermost.
struct Blocking {
  dnnl::memory::data_type type;
  Dims dims;
  Dims padded;   // dims, rounded up to whole blocks.
  Dims strides;  // Of outer blocks, in values.
  Dims inner_sizes;
  Dims inner_dims;  // The dimension of each inner block.
};
// No value if the format is not one of blocks or holds other values besides.
std::optional<Blocking> BlockingOf(const Desc& desc);

// Whether Winograd is there, forward and for both gradients, for float32 in
// kNchw16c.
bool HasWinograd();

// Pooling of x to y.
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

// Element-wise operations. The gradient of ReLU is from its output.
dnnl::eltwise_forward::primitive_desc EltwiseForward(const dnnl::engine& engine,
                                                     dnnl::algorithm algorithm,
                                                     const Desc& x);
dnnl::eltwise_backward::primitive_desc EltwiseBackward(
    const dnnl::eltwise_forward::primitive_desc& forward,
    const dnnl::engine& engine, dnnl::algorithm algorithm, const Desc& x);

// Softmax over dimension `last`, the last one.
dnnl::softmax_forward::primitive_desc SoftmaxForward(const dnnl::engine& engine,
                                                     const Desc& x, int last);
dnnl::softmax_backward::primitive_desc SoftmaxBackward(
    const dnnl::softmax_forward::primitive_desc& forward,
    const dnnl::engine& engine, const Desc& x, int last);

// Layer norm over the last dimension, with weight and bias. The statistics are
// kept for the backward pass.
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

// Activations of `shape` as oneDNN sees them: dimensions n, c, h, w. Where
// channels do not fill blocks, kNchw16c is a network's input: plane by plane.
dnnl::memory::desc Activations(const Shape& shape, DataType type,
                               Layout layout);
// Rows of `columns` values without gaps; one run of values.
dnnl::memory::desc Rows(int64_t rows, int64_t columns, DataType type);
dnnl::memory::desc Flat(int64_t size, DataType type);

// Bytes, rounded up so that what follows is aligned to 64.
int64_t AlignedBytes(int64_t bytes);
int64_t AlignedBytes(const dnnl::memory::desc& desc);

// `bytes` behind `start`; null behind null.
inline void* Offset(void* start, int64_t bytes) {
  return start == nullptr ? nullptr : static_cast<char*>(start) + bytes;
}

// A primitive and the memory objects of its arguments, made once. Throws
// dnnl::error. Not thread safe.
class Primitive {
 public:
  using Args = std::initializer_list<std::pair<int, dnnl::memory::desc>>;

  Primitive() = default;
  Primitive(const dnnl::engine& engine, const dnnl::primitive& primitive,
            Args args);

  // Points each named argument (DNNL_ARG_...) at its memory, runs, and returns
  // when done. Inputs are not written, whatever the type says; a null pointer
  // is for an argument without elements.
  void Run(dnnl::stream& stream,
           std::initializer_list<std::pair<int, const void*>> pointers);

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> args_;
};

// A copy from one format or type to another, as of a parameter between the
// plain one that it has in Parameters and the one that a primitive works in.
// Throws dnnl::error.
class Reorder {
 public:
  Reorder() = default;
  Reorder(const dnnl::engine& engine, const dnnl::memory::desc& from,
          const dnnl::memory::desc& to);

  // Whether there is nothing to do: the formats are the same.
  bool is_identity() const { return identity_; }

  // Overwrites `to`; only if not is_identity().
  void Run(dnnl::stream& stream, const void* from, void* to);
  // `from`, or `to` once it holds what is there.
  const void* RunIfNeeded(dnnl::stream& stream, const void* from, void* to);

 private:
  bool identity_ = true;
  Primitive reorder_;
};

// to[i] = a[i] + b[i] for i in [0, size), of one type. `to` may be a or b.
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
