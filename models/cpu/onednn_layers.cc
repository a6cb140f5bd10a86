// Layers that oneDNN computes: convolution and linear layers, y = W x + b and
// perhaps ReLU, and average pools.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {

namespace {

using dnnl::memory;

// A layer whose weights have one flat parameter and its bias another.
struct AffineParameters {
  std::string layer;  // For messages.
  int weights = 0;    // Indices into Parameters; the bias's is the higher.
  int bias = 0;
  bool relu = false;
};

// The order of conversions and primitives in a step of such a layer.
class AffinePlan : public LayerPlan {
 public:
  // Builds the plan from the primitive descriptors; `backward_data` is null if
  // no input gradient is wanted. plain_weights: how the weights lie in
  // Parameters. Throws dnnl::error.
  template <typename Forward, typename BackwardWeights, typename BackwardData>
  AffinePlan(const LayerContext& context, const AffineParameters& affine,
             const Shape& output, const dnnl::memory::desc& plain_weights,
             const Forward& forward, const BackwardWeights& backward_weights,
             const BackwardData* backward_data)
      : LayerPlan(output), context_(context), affine_(affine) {
    forward_ = Primitive(context.engine, dnnl::primitive(forward.get()),
                         {{DNNL_ARG_SRC, forward.src_desc()},
                          {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                          {DNNL_ARG_BIAS, forward.bias_desc()},
                          {DNNL_ARG_DST, forward.dst_desc()},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    forward_weights_ =
        Reorder(context.engine, plain_weights, forward.weights_desc());
    Reserve(forward.weights_desc(), forward.scratchpad_desc());
    backward_weights_ = Primitive(
        context.engine, dnnl::primitive(backward_weights.get()),
        {{DNNL_ARG_SRC, backward_weights.src_desc()},
         {DNNL_ARG_DIFF_DST, backward_weights.diff_dst_desc()},
         {DNNL_ARG_DIFF_WEIGHTS, backward_weights.diff_weights_desc()},
         {DNNL_ARG_DIFF_BIAS, backward_weights.diff_bias_desc()},
         {DNNL_ARG_SCRATCHPAD, backward_weights.scratchpad_desc()}});
    gradients_ = Reorder(context.engine, backward_weights.diff_weights_desc(),
                         plain_weights);
    Reserve(backward_weights.diff_weights_desc(),
            backward_weights.scratchpad_desc());
    if (affine.relu) PlanRelu();
    if (backward_data == nullptr) return;
    backward_data_ =
        Primitive(context.engine, dnnl::primitive(backward_data->get()),
                  {{DNNL_ARG_DIFF_SRC, backward_data->diff_src_desc()},
                   {DNNL_ARG_WEIGHTS, backward_data->weights_desc()},
                   {DNNL_ARG_DIFF_DST, backward_data->diff_dst_desc()},
                   {DNNL_ARG_SCRATCHPAD, backward_data->scratchpad_desc()}});
    data_weights_ =
        Reorder(context.engine, plain_weights, backward_data->weights_desc());
    Reserve(backward_data->weights_desc(), backward_data->scratchpad_desc());
  }

  absl::Status Forward(const Forwards& buffers) override {
    return CatchOnednn(affine_.layer, [&] {
      const float* weights =
          ConvertedWeights(forward_weights_, buffers.temporary);
      forward_.Run(
          context_.stream,
          {{DNNL_ARG_SRC, buffers.x},
           {DNNL_ARG_WEIGHTS, weights},
           {DNNL_ARG_BIAS, context_.parameters->value(affine_.bias).data()},
           {DNNL_ARG_DST, buffers.y},
           {DNNL_ARG_SCRATCHPAD, buffers.temporary + weights_size_}});
    });
  }

  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override {
    float* scratchpad = buffers.temporary + weights_size_;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(affine_.layer, [&] {
      if (affine_.relu) {
        relu_backward_.Run(context_.stream,
                           {{DNNL_ARG_DST, buffers.y},
                            {DNNL_ARG_DIFF_DST, buffers.dy},
                            {DNNL_ARG_DIFF_SRC, buffers.dy},
                            {DNNL_ARG_SCRATCHPAD, scratchpad}});
      }
      WeightGradients(buffers);
    }));
    // Outside the catch: `ready` is the caller's code.
    ready(affine_.bias);
    ready(affine_.weights);
    if (buffers.dx == nullptr) return absl::OkStatus();
    return CatchOnednn(affine_.layer, [&] {
      const float* weights = ConvertedWeights(data_weights_, buffers.temporary);
      backward_data_.Run(context_.stream, {{DNNL_ARG_DIFF_SRC, buffers.dx},
                                           {DNNL_ARG_WEIGHTS, weights},
                                           {DNNL_ARG_DIFF_DST, buffers.dy},
                                           {DNNL_ARG_SCRATCHPAD, scratchpad}});
    });
  }

 private:
  using Desc = dnnl::memory::desc;

  void PlanRelu() {
    // Element by element, so one flat dimension serves any layout.
    const Desc flat({output.size()}, dnnl::memory::data_type::f32,
                    dnnl::memory::format_tag::a);
    const auto desc = onednn::ReluBackwardFromOutput(context_.engine, flat);
    relu_backward_ = Primitive(context_.engine, dnnl::eltwise_backward(desc),
                               {{DNNL_ARG_DST, flat},
                                {DNNL_ARG_DIFF_DST, flat},
                                {DNNL_ARG_DIFF_SRC, flat},
                                {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}});
    Reserve(Desc(), desc.scratchpad_desc());
  }

  void Reserve(const Desc& weights, const Desc& scratch) {
    weights_size_ = std::max(weights_size_, AlignedSize(weights));
    scratchpad_size_ = std::max(scratchpad_size_, AlignedSize(scratch));
    temporary_size = weights_size_ + scratchpad_size_;
  }

  // The weights as `conversion` makes them: in `temporary`, or where they are.
  const float* ConvertedWeights(Reorder& conversion, float* temporary) {
    const float* plain = context_.parameters->value(affine_.weights).data();
    if (conversion.is_identity()) return plain;
    conversion.Run(context_.stream, plain, temporary);
    return temporary;
  }

  void WeightGradients(const Backwards& buffers) {
    Parameters& parameters = *context_.parameters;
    float* plain = parameters.gradient(affine_.weights).data();
    float* gradients = gradients_.is_identity() ? plain : buffers.temporary;
    backward_weights_.Run(
        context_.stream,
        {{DNNL_ARG_SRC, buffers.x},
         {DNNL_ARG_DIFF_DST, buffers.dy},
         {DNNL_ARG_DIFF_WEIGHTS, gradients},
         {DNNL_ARG_DIFF_BIAS, parameters.gradient(affine_.bias).data()},
         {DNNL_ARG_SCRATCHPAD, buffers.temporary + weights_size_}});
    if (!gradients_.is_identity()) {
      gradients_.Run(context_.stream, gradients, plain);
    }
  }

  LayerContext context_;
  AffineParameters affine_;
  // Temporary space: converted weights, then oneDNN's scratchpad.
  int64_t weights_size_ = 0;
  int64_t scratchpad_size_ = 0;
  Primitive forward_, backward_weights_, backward_data_, relu_backward_;
  Reorder forward_weights_, data_weights_, gradients_;
};

// What `make`, which may throw dnnl::error, gives for such a layer; for no
// samples an empty plan.
template <typename Make>
absl::StatusOr<std::unique_ptr<LayerPlan>> PlanAffine(
    const LayerContext& context, const AffineParameters& affine,
    const memory::dims& weights_shape, const Shape& output, const Make& make) {
  const Parameters& parameters = *context.parameters;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckParameter(affine.layer, parameters, affine.weights, weights_shape));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckParameter(affine.layer, parameters, affine.bias, {output.c}));
  if (output.n == 0) {
    return CreateEmptyPlan(*context.parameters, {affine.bias, affine.weights},
                           output);
  }
  std::unique_ptr<LayerPlan> plan;
  LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(affine.layer, [&] { plan = make(); }));
  return plan;
}

absl::StatusOr<Shape> OutputOf(const ConvolutionOptions& options,
                               const Shape& input) {
  const auto extent = [&](int64_t size) {
    return size + 2 * options.padding - options.kernel;
  };
  if (extent(input.h) < 0 || extent(input.w) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.name, ": kernel ", options.kernel, " with padding ",
        options.padding, " does not fit an input of ", input.h, "x", input.w));
  }
  return Shape{.n = input.n,
               .c = options.out_channels,
               .h = extent(input.h) / options.stride + 1,
               .w = extent(input.w) / options.stride + 1};
}

// Lets oneDNN choose the weights' format and keeps activations channels last.
absl::StatusOr<std::unique_ptr<LayerPlan>> PlanConvolution(
    const ConvolutionOptions& options, const LayerContext& context,
    const Shape& input, bool input_gradient) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Shape output, OutputOf(options, input));
  if (context.calls != nullptr) {
    context.calls->convolutions.push_back({options, input, input_gradient});
  }
  const AffineParameters affine{options.name, options.weights, options.bias,
                                options.relu};
  const memory::dims weights_shape = {options.out_channels, input.c,
                                      options.kernel, options.kernel};
  return PlanAffine(context, affine, weights_shape, output, [&] {
    constexpr auto kDirect = dnnl::algorithm::convolution_direct;
    const auto type = memory::data_type::f32;
    const memory::desc x = ChannelsLast(input);
    const memory::desc y = ChannelsLast(output);
    const memory::desc weights(weights_shape, type, memory::format_tag::any);
    const memory::desc bias({output.c}, type, memory::format_tag::a);
    const memory::dims strides = {options.stride, options.stride};
    const memory::dims padding = {options.padding, options.padding};
    const auto forward = onednn::Forward<dnnl::convolution_forward>(
        context.engine, options.relu, dnnl::prop_kind::forward_training,
        kDirect, x, weights, bias, y, strides, padding, padding);
    const auto backward_weights =
        onednn::Backward<dnnl::convolution_backward_weights>(
            context.engine, forward, kDirect, x, weights, bias, y, strides,
            padding, padding);
    std::optional<dnnl::convolution_backward_data::primitive_desc> data;
    if (input_gradient) {
      data = onednn::Backward<dnnl::convolution_backward_data>(
          context.engine, forward, kDirect, x, weights, y, strides, padding,
          padding);
    }
    const memory::desc plain(weights_shape, type, memory::format_tag::oihw);
    return std::make_unique<AffinePlan>(context, affine, output, plain, forward,
                                        backward_weights,
                                        data.has_value() ? &*data : nullptr);
  });
}

// oneDNN's inner product, on weights whose formats convert row by row.
absl::StatusOr<std::unique_ptr<LayerPlan>> PlanLinear(
    const LinearOptions& options, const LayerContext& context,
    const Shape& input, bool input_gradient) {
  const AffineParameters affine{options.name, options.weights, options.bias,
                                options.relu};
  const int64_t in = input.c * input.h * input.w;
  const int64_t out = options.out_features;
  const memory::dims weights_shape =
      options.outputs_first ? memory::dims{out, in} : memory::dims{in, out};
  const Shape output{.n = input.n, .c = out};
  return PlanAffine(context, affine, weights_shape, output, [&] {
    const auto type = memory::data_type::f32;
    const memory::dims dims{out, input.c, input.h, input.w};
    // Outputs innermost, or outermost, in both, so that the conversion between
    // them moves whole rows, and for a 1x1 input there is none. `any` would
    // pick a blocked format whose conversion costs more than it saves.
    const memory::dims plain_strides =
        options.outputs_first
            ? memory::dims{in, input.h * input.w, input.w, 1}
            : memory::dims{1, input.h * input.w * out, input.w * out, out};
    const memory::desc plain(dims, type, plain_strides);
    const auto inner = options.outputs_first ? memory::format_tag::ohwi
                                             : memory::format_tag::hwio;
    const memory::desc x = ChannelsLast(input);
    const memory::desc weights(dims, type, inner);
    const memory::desc bias({out}, type, memory::format_tag::a);
    const memory::desc y({input.n, out}, type, memory::format_tag::ab);
    const auto forward = onednn::Forward<dnnl::inner_product_forward>(
        context.engine, options.relu, dnnl::prop_kind::forward_training, x,
        weights, bias, y);
    const auto backward_weights =
        onednn::Backward<dnnl::inner_product_backward_weights>(
            context.engine, forward, x, weights, bias, y);
    std::optional<dnnl::inner_product_backward_data::primitive_desc> data;
    if (input_gradient) {
      data = onednn::Backward<dnnl::inner_product_backward_data>(
          context.engine, forward, x, weights, y);
    }
    return std::make_unique<AffinePlan>(context, affine, output, plain, forward,
                                        backward_weights,
                                        data.has_value() ? &*data : nullptr);
  });
}

class AveragePoolPlan : public LayerPlan {
 public:
  // Throws dnnl::error.
  AveragePoolPlan(const LayerContext& context, std::string name,
                  const Shape& input, const Shape& output,
                  const memory::dims& window)
      : LayerPlan(output), context_(context), name_(std::move(name)) {
    const memory::desc x = ChannelsLast(input);
    const memory::desc y = ChannelsLast(output);
    const auto forward =
        onednn::AveragePoolForward(context.engine, x, y, window);
    const auto backward =
        onednn::AveragePoolBackward(forward, context.engine, x, y, window);
    forward_ = Primitive(context.engine, dnnl::pooling_forward(forward),
                         {{DNNL_ARG_SRC, x},
                          {DNNL_ARG_DST, y},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ = Primitive(context.engine, dnnl::pooling_backward(backward),
                          {{DNNL_ARG_DIFF_SRC, x},
                           {DNNL_ARG_DIFF_DST, y},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    temporary_size = std::max(AlignedSize(forward.scratchpad_desc()),
                              AlignedSize(backward.scratchpad_desc()));
  }

  absl::Status Forward(const Forwards& buffers) override {
    return CatchOnednn(name_, [&] {
      forward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                     {DNNL_ARG_DST, buffers.y},
                                     {DNNL_ARG_SCRATCHPAD, buffers.temporary}});
    });
  }

  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return CatchOnednn(name_, [&] {
      backward_.Run(context_.stream,
                    {{DNNL_ARG_DIFF_SRC, buffers.dx},
                     {DNNL_ARG_DIFF_DST, buffers.dy},
                     {DNNL_ARG_SCRATCHPAD, buffers.temporary}});
    });
  }

 private:
  LayerContext context_;
  std::string name_;
  Primitive forward_, backward_;
};

// window: none for all of the input.
Layer AveragePool(std::string name, std::optional<int64_t> window) {
  return {[name = std::move(name), window](const LayerContext& context,
                                           const Shape& input,
                                           bool /*input_gradient*/)
              -> absl::StatusOr<std::unique_ptr<LayerPlan>> {
    const int64_t height = window.value_or(input.h);
    const int64_t width = window.value_or(input.w);
    if (input.h < height || input.w < width) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": window ", height, " does not fit an input of ",
                       input.h, "x", input.w));
    }
    const Shape output{.n = input.n,
                       .c = input.c,
                       .h = input.h / height,
                       .w = input.w / width};
    if (input.n == 0) return CreateEmptyPlan(*context.parameters, {}, output);
    std::unique_ptr<LayerPlan> plan;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name, [&] {
      plan = std::make_unique<AveragePoolPlan>(context, name, input, output,
                                               memory::dims{height, width});
    }));
    return plan;
  }};
}

}  // namespace

Layer CreateConvolution(ConvolutionOptions options) {
  return {std::bind_front(PlanConvolution, std::move(options))};
}

Layer CreateLinear(LinearOptions options) {
  return {std::bind_front(PlanLinear, std::move(options))};
}

Layer CreateAveragePool(std::string name, int64_t window) {
  return AveragePool(std::move(name), window);
}

Layer CreateGlobalAveragePool(std::string name) {
  return AveragePool(std::move(name), std::nullopt);
}

}  // namespace lockstep
