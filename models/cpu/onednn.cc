// The two halves make the same primitives through the two versions' interfaces.
#include "models/cpu/onednn.h"

#include "absl/strings/str_cat.h"

namespace lockstep::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

constexpr auto kConvolution = algorithm::convolution_direct;
constexpr auto kTraining = prop_kind::forward_training;
constexpr auto kAverage = algorithm::pooling_avg_exclude_padding;
constexpr auto kReluFromOutput = algorithm::eltwise_relu_use_dst_for_bwd;

}  // namespace

#if DNNL_VERSION_MAJOR >= 3

dnnl::primitive_attr Attributes(bool relu) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops post;
    post.append_eltwise(algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  return attributes;
}

dnnl::convolution_forward::primitive_desc ConvolutionForward(
    const dnnl::engine& engine, const ConvolutionShape& shape, bool relu) {
  return {engine,        kTraining,     kConvolution,    shape.x,
          shape.weights, shape.bias,    shape.y,         shape.strides,
          shape.padding, shape.padding, Attributes(relu)};
}

dnnl::convolution_backward_weights::primitive_desc ConvolutionBackwardWeights(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward) {
  return {engine,        kConvolution, shape.x,          shape.weights,
          shape.bias,    shape.y,      shape.strides,    shape.padding,
          shape.padding, forward,      Attributes(false)};
}

dnnl::convolution_backward_data::primitive_desc ConvolutionBackwardData(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward) {
  return {engine,  kConvolution,     shape.x,       shape.weights,
          shape.y, shape.strides,    shape.padding, shape.padding,
          forward, Attributes(false)};
}

dnnl::inner_product_forward::primitive_desc InnerProductForward(
    const dnnl::engine& engine, const InnerProductShape& shape, bool relu) {
  return {engine,     kTraining, shape.x,         shape.weights,
          shape.bias, shape.y,   Attributes(relu)};
}

dnnl::inner_product_backward_weights::primitive_desc
InnerProductBackwardWeights(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward) {
  return {engine,  shape.x, shape.weights,    shape.bias,
          shape.y, forward, Attributes(false)};
}

dnnl::inner_product_backward_data::primitive_desc InnerProductBackwardData(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward) {
  return {engine, shape.x, shape.weights, shape.y, forward, Attributes(false)};
}

dnnl::pooling_forward::primitive_desc AveragePoolForward(
    const dnnl::engine& engine, const PoolingShape& shape) {
  const dnnl::memory::dims no_dilation{0, 0};
  return {engine,        kTraining,     kAverage,         shape.x,
          shape.y,       shape.strides, shape.window,     no_dilation,
          shape.padding, shape.padding, Attributes(false)};
}

dnnl::pooling_backward::primitive_desc AveragePoolBackward(
    const dnnl::engine& engine, const PoolingShape& shape,
    const dnnl::pooling_forward::primitive_desc& forward) {
  const dnnl::memory::dims no_dilation{0, 0};
  return {engine,        kAverage,     shape.x,          shape.y,
          shape.strides, shape.window, no_dilation,      shape.padding,
          shape.padding, forward,      Attributes(false)};
}

dnnl::eltwise_backward::primitive_desc ReluBackwardFromOutput(
    const dnnl::engine& engine, const dnnl::memory::desc& y) {
  const dnnl::eltwise_forward::primitive_desc forward(
      engine, kTraining, kReluFromOutput, y, y, 0.0f, 0.0f, Attributes(false));
  return {engine,  kReluFromOutput,  y, y, y, 0.0f, 0.0f,
          forward, Attributes(false)};
}

#else

dnnl::primitive_attr Attributes(bool relu) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops post;
    post.append_eltwise(/*scale=*/1.0f, algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  return attributes;
}

dnnl::convolution_forward::primitive_desc ConvolutionForward(
    const dnnl::engine& engine, const ConvolutionShape& shape, bool relu) {
  return {{kTraining, kConvolution, shape.x, shape.weights, shape.bias, shape.y,
           shape.strides, shape.padding, shape.padding},
          Attributes(relu),
          engine};
}

dnnl::convolution_backward_weights::primitive_desc ConvolutionBackwardWeights(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward) {
  return {{kConvolution, shape.x, shape.weights, shape.bias, shape.y,
           shape.strides, shape.padding, shape.padding},
          Attributes(false),
          engine,
          forward};
}

dnnl::convolution_backward_data::primitive_desc ConvolutionBackwardData(
    const dnnl::engine& engine, const ConvolutionShape& shape,
    const dnnl::convolution_forward::primitive_desc& forward) {
  return {{kConvolution, shape.x, shape.weights, shape.y, shape.strides,
           shape.padding, shape.padding},
          Attributes(false),
          engine,
          forward};
}

dnnl::inner_product_forward::primitive_desc InnerProductForward(
    const dnnl::engine& engine, const InnerProductShape& shape, bool relu) {
  return {{kTraining, shape.x, shape.weights, shape.bias, shape.y},
          Attributes(relu),
          engine};
}

dnnl::inner_product_backward_weights::primitive_desc
InnerProductBackwardWeights(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward) {
  return {{shape.x, shape.weights, shape.bias, shape.y},
          Attributes(false),
          engine,
          forward};
}

dnnl::inner_product_backward_data::primitive_desc InnerProductBackwardData(
    const dnnl::engine& engine, const InnerProductShape& shape,
    const dnnl::inner_product_forward::primitive_desc& forward) {
  return {
      {shape.x, shape.weights, shape.y}, Attributes(false), engine, forward};
}

dnnl::pooling_forward::primitive_desc AveragePoolForward(
    const dnnl::engine& engine, const PoolingShape& shape) {
  return {{kTraining, kAverage, shape.x, shape.y, shape.strides, shape.window,
           shape.padding, shape.padding},
          Attributes(false),
          engine};
}

dnnl::pooling_backward::primitive_desc AveragePoolBackward(
    const dnnl::engine& engine, const PoolingShape& shape,
    const dnnl::pooling_forward::primitive_desc& forward) {
  return {{kAverage, shape.x, shape.y, shape.strides, shape.window,
           shape.padding, shape.padding},
          Attributes(false),
          engine,
          forward};
}

dnnl::eltwise_backward::primitive_desc ReluBackwardFromOutput(
    const dnnl::engine& engine, const dnnl::memory::desc& y) {
  const dnnl::eltwise_forward::primitive_desc forward(
      {kTraining, kReluFromOutput, y, 0.0f, 0.0f}, Attributes(false), engine);
  return {
      {kReluFromOutput, y, y, 0.0f, 0.0f}, Attributes(false), engine, forward};
}

#endif

}  // namespace lockstep::onednn

namespace lockstep {

// Thin wrappers over dnnl::primitive and dnnl::memory.
namespace {

constexpr int64_t kAlignedFloats = 16;  // 64 bytes.

}  // namespace

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

dnnl::memory::desc ChannelsLast(const Shape& shape) {
  return {{shape.n, shape.c, shape.h, shape.w},
          dnnl::memory::data_type::f32,
          dnnl::memory::format_tag::nhwc};
}

int64_t AlignedSize(int64_t floats) {
  return (floats + kAlignedFloats - 1) / kAlignedFloats * kAlignedFloats;
}

int64_t AlignedSize(const dnnl::memory::desc& desc) {
  const int64_t bytes = static_cast<int64_t>(desc.get_size());
  const int64_t float_bytes = sizeof(float);
  return AlignedSize((bytes + float_bytes - 1) / float_bytes);
}

Primitive::Primitive(
    const dnnl::engine& engine, const dnnl::primitive& primitive,
    std::initializer_list<std::pair<int, dnnl::memory::desc>> args)
    : primitive_(primitive) {
  for (const auto& [arg, desc] : args) {
    args_.emplace(arg, dnnl::memory(desc, engine, DNNL_MEMORY_NONE));
  }
}

void Primitive::Run(
    dnnl::stream& stream,
    std::initializer_list<std::pair<int, const float*>> pointers) {
  for (const auto& [arg, pointer] : pointers) {
    args_.at(arg).set_data_handle(const_cast<float*>(pointer));
  }
  primitive_.execute(stream, args_);
  stream.wait();
}

FormatConversion::FormatConversion(const dnnl::engine& engine,
                                   const dnnl::memory::desc& from,
                                   const dnnl::memory::desc& to)
    : identity_(from == to) {
  if (identity_) return;
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void FormatConversion::Run(dnnl::stream& stream, const float* from, float* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Accumulation::Accumulation(const dnnl::engine& engine, int64_t size) {
  const dnnl::memory::desc flat({size}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::a);
  dnnl::post_ops add;
  add.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(add);
  const dnnl::reorder::primitive_desc desc(engine, flat, engine, flat,
                                           attributes);
  reorder_ = Primitive(engine, dnnl::reorder(desc),
                       {{DNNL_ARG_FROM, flat}, {DNNL_ARG_TO, flat}});
}

void Accumulation::Run(dnnl::stream& stream, const float* from, float* to) {
  reorder_.Run(stream, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace lockstep
