#include "models/cpu/onednn.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "models/model.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep::onednn {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

constexpr auto kTraining = prop_kind::forward_training;
constexpr auto kBackward = prop_kind::backward;
const auto kScaleAndShift =
    dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;

void AppendEltwise(dnnl::post_ops& post, algorithm algorithm, float alpha) {
#if DNNL_VERSION_MAJOR >= 3
  post.append_eltwise(algorithm, alpha, 0.0f);
#else
  post.append_eltwise(/*scale=*/1.0f, algorithm, alpha, 0.0f);
#endif
}

Desc AnyFormat(const Dims& dims, memory::data_type type) {
  return {dims, type, memory::format_tag::any};
}

memory::data_type TypeOf(const Desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  return desc.get_data_type();
#else
  return desc.data_type();
#endif
}

algorithm PoolAlgorithm(bool maximum) {
  return maximum ? algorithm::pooling_max
                 : algorithm::pooling_avg_exclude_padding;
}

}  // namespace

dnnl::primitive_attr Attributes(const PostOps& after) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  if (after.scale != 1) {
    AppendEltwise(post, algorithm::eltwise_linear, after.scale);
  }
  if (after.relu) AppendEltwise(post, algorithm::eltwise_relu, 0.0f);
  if (post.len() > 0) attributes.set_post_ops(post);
  return attributes;
}

dnnl::convolution_forward::primitive_desc ConvolutionForward(
    const dnnl::engine& engine, algorithm algorithm,
    const Convolution& convolution, bool relu) {
  return Forward<dnnl::convolution_forward>(
      engine, {.relu = relu}, kTraining, algorithm, convolution.x,
      AnyFormat(convolution.weights, TypeOf(convolution.x)), convolution.bias,
      convolution.y, convolution.stride, convolution.padding,
      convolution.padding);
}

dnnl::convolution_backward_weights::primitive_desc ConvolutionWeights(
    const dnnl::convolution_forward::primitive_desc& forward,
    const dnnl::engine& engine, algorithm algorithm,
    const Convolution& convolution) {
  return Backward<dnnl::convolution_backward_weights>(
      engine, forward, algorithm, convolution.x,
      AnyFormat(convolution.weights, memory::data_type::f32), convolution.bias,
      convolution.y, convolution.stride, convolution.padding,
      convolution.padding);
}

dnnl::convolution_backward_data::primitive_desc ConvolutionData(
    const dnnl::convolution_forward::primitive_desc& forward,
    const dnnl::engine& engine, algorithm algorithm,
    const Convolution& convolution) {
  return Backward<dnnl::convolution_backward_data>(
      engine, forward, algorithm, convolution.x,
      AnyFormat(convolution.weights, TypeOf(convolution.x)), convolution.y,
      convolution.stride, convolution.padding, convolution.padding);
}

std::optional<Blocking> BlockingOf(const Desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  if (desc.get_format_kind() != memory::format_kind::blocked ||
      desc.get_submemory_offset() != 0) {
    return std::nullopt;
  }
  const Blocking blocking = {.type = desc.get_data_type(),
                             .dims = desc.get_dims(),
                             .padded = desc.get_padded_dims(),
                             .strides = desc.get_strides(),
                             .inner_sizes = desc.get_inner_blks(),
                             .inner_dims = desc.get_inner_idxs()};
#else
  if (desc.data.format_kind != dnnl_blocked || desc.data.offset0 != 0) {
    return std::nullopt;
  }
  const auto& inner = desc.data.format_desc.blocking;
  const auto copy = [](const dnnl_dim_t* from, int count) {
    return Dims(from, from + count);
  };
  const Blocking blocking = {
      .type = desc.data_type(),
      .dims = desc.dims(),
      .padded = copy(desc.data.padded_dims, desc.data.ndims),
      .strides = copy(inner.strides, desc.data.ndims),
      .inner_sizes = copy(inner.inner_blks, inner.inner_nblks),
      .inner_dims = copy(inner.inner_idxs, inner.inner_nblks)};
#endif
  // Sums that compensate for quantisation would follow the values.
  auto bytes = static_cast<int64_t>(memory::data_type_size(blocking.type));
  for (const int64_t size : blocking.padded) bytes *= size;
  if (bytes != static_cast<int64_t>(desc.get_size())) return std::nullopt;
  return blocking;
}

namespace {

// Returns a small convolution of 3x3.
Convolution SmallConvolution(DataType type, Layout layout) {
  const Desc x =
      Activations({.n = 1, .c = kChannelBlock, .h = 4, .w = 4}, type, layout);
  return {.x = x,
          .y = x,
          .bias = {},
          .weights = {kChannelBlock, kChannelBlock, 3, 3},
          .stride = {1, 1},
          .padding = {1, 1}};
}

// Returns whether `make` makes its primitives on this machine.
bool IsSupported(absl::FunctionRef<void(const dnnl::engine&)> make) {
  try {
    make(dnnl::engine(dnnl::engine::kind::cpu, 0));
  } catch (const dnnl::error&) {
    return false;
  }
  return true;
}

}  // namespace

bool HasWinograd() {
  const Convolution small =
      SmallConvolution(DataType::kFloat32, Layout::kNchw16c);
  constexpr auto kWinograd = algorithm::convolution_winograd;
  return IsSupported([&](const dnnl::engine& engine) {
    const auto forward =
        ConvolutionForward(engine, kWinograd, small, /*relu=*/false);
    ConvolutionWeights(forward, engine, kWinograd, small);
    ConvolutionData(forward, engine, kWinograd, small);
  });
}

bool HasBFloat16() {
  const Convolution small =
      SmallConvolution(DataType::kBFloat16, Layout::kNhwc);
  return IsSupported([&](const dnnl::engine& engine) {
    ConvolutionForward(engine, algorithm::convolution_direct, small,
                       /*relu=*/false);
  });
}

// In oneDNN 3, pooling has a dilation too, and element-wise primitives, softmax
// and layer norm take descriptors of all tensors.

dnnl::pooling_forward::primitive_desc PoolForward(const dnnl::engine& engine,
                                                  bool maximum, const Desc& x,
                                                  const Desc& y,
                                                  const Window& window) {
  return Forward<dnnl::pooling_forward>(
      engine, {}, kTraining, PoolAlgorithm(maximum), x, y, window.stride,
      window.kernel,
#if DNNL_VERSION_MAJOR >= 3
      memory::dims{0, 0},
#endif
      window.padding_before, window.padding_after);
}

dnnl::pooling_backward::primitive_desc PoolBackward(
    const dnnl::pooling_forward::primitive_desc& forward,
    const dnnl::engine& engine, bool maximum, const Desc& x, const Desc& y,
    const Window& window) {
  return Backward<dnnl::pooling_backward>(
      engine, forward, PoolAlgorithm(maximum), x, y, window.stride,
      window.kernel,
#if DNNL_VERSION_MAJOR >= 3
      memory::dims{0, 0},
#endif
      window.padding_before, window.padding_after);
}

dnnl::eltwise_forward::primitive_desc EltwiseForward(const dnnl::engine& engine,
                                                     algorithm algorithm,
                                                     const Desc& x) {
#if DNNL_VERSION_MAJOR >= 3
  return Forward<dnnl::eltwise_forward>(engine, {}, kTraining, algorithm, x, x,
                                        0.0f, 0.0f);
#else
  return Forward<dnnl::eltwise_forward>(engine, {}, kTraining, algorithm, x,
                                        0.0f, 0.0f);
#endif
}

dnnl::eltwise_backward::primitive_desc EltwiseBackward(
    const dnnl::eltwise_forward::primitive_desc& forward,
    const dnnl::engine& engine, algorithm algorithm, const Desc& x) {
#if DNNL_VERSION_MAJOR >= 3
  return Backward<dnnl::eltwise_backward>(engine, forward, algorithm, x, x, x,
                                          0.0f, 0.0f);
#else
  return Backward<dnnl::eltwise_backward>(engine, forward, algorithm, x, x,
                                          0.0f, 0.0f);
#endif
}

dnnl::softmax_forward::primitive_desc SoftmaxForward(const dnnl::engine& engine,
                                                     const Desc& x, int last) {
#if DNNL_VERSION_MAJOR >= 3
  return Forward<dnnl::softmax_forward>(
      engine, {}, kTraining, algorithm::softmax_accurate, x, x, last);
#else
  return Forward<dnnl::softmax_forward>(engine, {}, kTraining, x, last);
#endif
}

dnnl::softmax_backward::primitive_desc SoftmaxBackward(
    const dnnl::softmax_forward::primitive_desc& forward,
    const dnnl::engine& engine, const Desc& x, int last) {
#if DNNL_VERSION_MAJOR >= 3
  return Backward<dnnl::softmax_backward>(
      engine, forward, algorithm::softmax_accurate, x, x, x, last);
#else
  return Backward<dnnl::softmax_backward>(engine, forward, x, x, last);
#endif
}

dnnl::layer_normalization_forward::primitive_desc LayerNormForward(
    const dnnl::engine& engine, const Desc& x, float epsilon) {
#if DNNL_VERSION_MAJOR >= 3
  return Forward<dnnl::layer_normalization_forward>(engine, {}, kTraining, x, x,
                                                    epsilon, kScaleAndShift);
#else
  return Forward<dnnl::layer_normalization_forward>(engine, {}, kTraining, x,
                                                    epsilon, kScaleAndShift);
#endif
}

dnnl::layer_normalization_backward::primitive_desc LayerNormBackward(
    const dnnl::layer_normalization_forward::primitive_desc& forward,
    const dnnl::engine& engine, const Desc& x, float epsilon) {
#if DNNL_VERSION_MAJOR >= 3
  return Backward<dnnl::layer_normalization_backward>(
      engine, forward, kBackward, x, x, x, epsilon, kScaleAndShift);
#else
  return Backward<dnnl::layer_normalization_backward>(
      engine, forward, kBackward, x, x, epsilon, kScaleAndShift);
#endif
}

}  // namespace lockstep::onednn

namespace lockstep {

using dnnl::memory;

absl::Status CatchOnednn(const std::string& layer,
                         absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const dnnl::error& error) {
    return absl::InternalError(
        absl::StrCat(layer, ": oneDNN: ", error.what(), " (status ",
                     static_cast<int>(error.status), ")"));
  }
  return absl::OkStatus();
}

memory::data_type OnednnType(DataType type) {
  return type == DataType::kBFloat16 ? memory::data_type::bf16
                                     : memory::data_type::f32;
}

memory::desc Activations(const Shape& shape, DataType type, Layout layout) {
  const auto tag = [&] {
    if (layout == Layout::kNhwc) return memory::format_tag::nhwc;
    return shape.c % kChannelBlock == 0 ? memory::format_tag::nChw16c
                                        : memory::format_tag::nchw;
  };
  return {{shape.n, shape.c, shape.h, shape.w}, OnednnType(type), tag()};
}

memory::desc Rows(int64_t rows, int64_t columns, DataType type) {
  return {{rows, columns}, OnednnType(type), memory::format_tag::ab};
}

memory::desc Flat(int64_t size, DataType type) {
  return {{size}, OnednnType(type), memory::format_tag::a};
}

int64_t AlignedBytes(const memory::desc& desc) {
  return AlignedBytes(static_cast<int64_t>(desc.get_size()));
}

Primitive::Primitive(const dnnl::engine& engine,
                     const dnnl::primitive& primitive, Args args)
    : primitive_(primitive) {
  for (const auto& [arg, desc] : args) {
    args_.emplace(arg, memory(desc, engine, DNNL_MEMORY_NONE));
  }
}

void Primitive::Run(
    dnnl::stream& stream,
    std::initializer_list<std::pair<int, const void*>> pointers) {
  for (const auto& [arg, pointer] : pointers) {
    args_.at(arg).set_data_handle(const_cast<void*>(pointer));
  }
  primitive_.execute(stream, args_);
  stream.wait();
}

Reorder::Reorder(const dnnl::engine& engine, const memory::desc& from,
                 const memory::desc& to)
    : identity_(from == to) {
  if (identity_) return;
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void Reorder::Run(dnnl::stream& stream, const void* from, void* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

const void* Reorder::RunIfNeeded(dnnl::stream& stream, const void* from,
                                 void* to) {
  if (identity_) return from;
  Run(stream, from, to);
  return to;
}

Sum::Sum(const dnnl::engine& engine, int64_t size, DataType type) {
  const memory::desc flat = Flat(size, type);
  const auto desc = onednn::Forward<dnnl::binary>(
      engine, {}, dnnl::algorithm::binary_add, flat, flat, flat);
  sum_ = Primitive(
      engine, dnnl::binary(desc),
      {{DNNL_ARG_SRC_0, flat}, {DNNL_ARG_SRC_1, flat}, {DNNL_ARG_DST, flat}});
}

void Sum::Run(dnnl::stream& stream, const void* a, const void* b, void* to) {
  sum_.Run(stream,
           {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, to}});
}

}  // namespace lockstep
