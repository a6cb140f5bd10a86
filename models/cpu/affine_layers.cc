// Convolution and linear layers: y = W x + b, then perhaps ReLU.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/layer.h"
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

absl::Status CheckAffineParameters(const AffineParameters& affine,
                                   const Parameters& parameters,
                                   const std::vector<int64_t>& weights_shape,
                                   int64_t bias_size) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckParameter(affine.layer, parameters, affine.weights, weights_shape));
  return CheckParameter(affine.layer, parameters, affine.bias, {bias_size});
}

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
      : context_(context), affine_(affine), output_(output) {
    PlanForward(plain_weights, forward.weights_desc(),
                forward.scratchpad_desc(),
                Primitive(context.engine, dnnl::primitive(forward.get()),
                          {{DNNL_ARG_SRC, forward.src_desc()},
                           {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                           {DNNL_ARG_BIAS, forward.bias_desc()},
                           {DNNL_ARG_DST, forward.dst_desc()},
                           {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}}));
    PlanBackwardWeights(
        plain_weights, backward_weights.diff_weights_desc(),
        backward_weights.scratchpad_desc(),
        Primitive(
            context.engine, dnnl::primitive(backward_weights.get()),
            {{DNNL_ARG_SRC, backward_weights.src_desc()},
             {DNNL_ARG_DIFF_DST, backward_weights.diff_dst_desc()},
             {DNNL_ARG_DIFF_WEIGHTS, backward_weights.diff_weights_desc()},
             {DNNL_ARG_DIFF_BIAS, backward_weights.diff_bias_desc()},
             {DNNL_ARG_SCRATCHPAD, backward_weights.scratchpad_desc()}}));
    if (affine.relu) PlanRelu();
    if (backward_data == nullptr) return;
    PlanBackwardData(
        plain_weights, backward_data->weights_desc(),
        backward_data->scratchpad_desc(),
        Primitive(context.engine, dnnl::primitive(backward_data->get()),
                  {{DNNL_ARG_DIFF_SRC, backward_data->diff_src_desc()},
                   {DNNL_ARG_WEIGHTS, backward_data->weights_desc()},
                   {DNNL_ARG_DIFF_DST, backward_data->diff_dst_desc()},
                   {DNNL_ARG_SCRATCHPAD, backward_data->scratchpad_desc()}}));
  }

  const Shape& output() const override { return output_; }
  int64_t saved_size() const override { return 0; }
  int64_t temporary_size() const override {
    return weights_size_ + scratchpad_size_;
  }

  absl::Status Forward(const Forwards& buffers) override;
  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override;

 private:
  using Desc = dnnl::memory::desc;
  void PlanForward(const Desc& plain, const Desc& weights, const Desc& scratch,
                   Primitive primitive);
  void PlanBackwardWeights(const Desc& plain, const Desc& weights,
                           const Desc& scratch, Primitive primitive);
  void PlanBackwardData(const Desc& plain, const Desc& weights,
                        const Desc& scratch, Primitive primitive);
  void PlanRelu();
  void Reserve(const Desc& weights, const Desc& scratch);

  // The weights as `conversion` makes them: in `temporary`, or where they are.
  const float* ConvertedWeights(FormatConversion& conversion, float* temporary);
  void WeightGradients(const Backwards& buffers);

  LayerContext context_;
  AffineParameters affine_;
  Shape output_;
  // Temporary space: converted weights, then oneDNN's scratchpad.
  int64_t weights_size_ = 0;
  int64_t scratchpad_size_ = 0;
  Primitive forward_, backward_weights_, backward_data_, relu_backward_;
  FormatConversion forward_weights_, data_weights_, gradients_;
};

void AffinePlan::PlanForward(const Desc& plain, const Desc& weights,
                             const Desc& scratch, Primitive primitive) {
  forward_ = std::move(primitive);
  forward_weights_ = FormatConversion(context_.engine, plain, weights);
  Reserve(weights, scratch);
}

void AffinePlan::PlanBackwardWeights(const Desc& plain, const Desc& weights,
                                     const Desc& scratch, Primitive primitive) {
  backward_weights_ = std::move(primitive);
  gradients_ = FormatConversion(context_.engine, weights, plain);
  Reserve(weights, scratch);
}

void AffinePlan::PlanBackwardData(const Desc& plain, const Desc& weights,
                                  const Desc& scratch, Primitive primitive) {
  backward_data_ = std::move(primitive);
  data_weights_ = FormatConversion(context_.engine, plain, weights);
  Reserve(weights, scratch);
}

void AffinePlan::PlanRelu() {
  // Element by element, so one flat dimension serves any layout.
  const Desc flat({output_.size()}, dnnl::memory::data_type::f32,
                  dnnl::memory::format_tag::a);
  const auto desc = onednn::ReluBackwardFromOutput(context_.engine, flat);
  relu_backward_ = Primitive(context_.engine, dnnl::eltwise_backward(desc),
                             {{DNNL_ARG_DST, flat},
                              {DNNL_ARG_DIFF_DST, flat},
                              {DNNL_ARG_DIFF_SRC, flat},
                              {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}});
  Reserve(Desc(), desc.scratchpad_desc());
}

void AffinePlan::Reserve(const Desc& weights, const Desc& scratch) {
  weights_size_ = std::max(weights_size_, AlignedSize(weights));
  scratchpad_size_ = std::max(scratchpad_size_, AlignedSize(scratch));
}

const float* AffinePlan::ConvertedWeights(FormatConversion& conversion,
                                          float* temporary) {
  const float* plain = context_.parameters->value(affine_.weights).data();
  if (conversion.is_identity()) return plain;
  conversion.Run(context_.stream, plain, temporary);
  return temporary;
}

absl::Status AffinePlan::Forward(const Forwards& buffers) {
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

void AffinePlan::WeightGradients(const Backwards& buffers) {
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

absl::Status AffinePlan::Backward(const Backwards& buffers,
                                  Model::GradientReady ready) {
  float* scratchpad = buffers.temporary + weights_size_;
  LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(affine_.layer, [&] {
    if (affine_.relu) {
      relu_backward_.Run(context_.stream, {{DNNL_ARG_DST, buffers.y},
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

// Lets oneDNN choose the weights' format and keeps activations channels last.
class Convolution : public Layer {
 public:
  explicit Convolution(ConvolutionOptions options)
      : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool input_gradient) const override {
    LOCKSTEP_ASSIGN_OR_RETURN(const Shape output, Output(input));
    const AffineParameters affine{options_.name, options_.weights,
                                  options_.bias, options_.relu};
    LOCKSTEP_RETURN_IF_ERROR(CheckAffineParameters(
        affine, *context.parameters, WeightsShape(input), output.c));
    if (input.n == 0) {
      return CreateEmptyPlan(*context.parameters,
                             {options_.bias, options_.weights}, output);
    }
    std::unique_ptr<LayerPlan> plan;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(options_.name, [&] {
      plan = MakePlan(context, affine, input, output, input_gradient);
    }));
    return plan;
  }

 private:
  memory::dims WeightsShape(const Shape& input) const {
    return {options_.out_channels, input.c, options_.kernel, options_.kernel};
  }

  absl::StatusOr<Shape> Output(const Shape& input) const {
    const auto extent = [&](int64_t size) {
      return size + 2 * options_.padding - options_.kernel;
    };
    if (extent(input.h) < 0 || extent(input.w) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.name, ": kernel ", options_.kernel,
                       " with padding ", options_.padding,
                       " does not fit an input of ", input.h, "x", input.w));
    }
    return Shape{.n = input.n,
                 .c = options_.out_channels,
                 .h = extent(input.h) / options_.stride + 1,
                 .w = extent(input.w) / options_.stride + 1};
  }

  std::unique_ptr<LayerPlan> MakePlan(const LayerContext& context,
                                      const AffineParameters& affine,
                                      const Shape& input, const Shape& output,
                                      bool input_gradient) const {
    const memory::dims weights = WeightsShape(input);
    const auto type = memory::data_type::f32;
    const onednn::ConvolutionShape shape{
        .x = ChannelsLast(input),
        .weights = {weights, type, memory::format_tag::any},
        .bias = {{output.c}, type, memory::format_tag::a},
        .y = ChannelsLast(output),
        .strides = {options_.stride, options_.stride},
        .padding = {options_.padding, options_.padding}};
    const auto forward =
        onednn::ConvolutionForward(context.engine, shape, options_.relu);
    const auto backward_weights =
        onednn::ConvolutionBackwardWeights(context.engine, shape, forward);
    std::optional<dnnl::convolution_backward_data::primitive_desc> data;
    if (input_gradient) {
      data = onednn::ConvolutionBackwardData(context.engine, shape, forward);
    }
    const memory::desc plain(weights, type, memory::format_tag::oihw);
    return std::make_unique<AffinePlan>(context, affine, output, plain, forward,
                                        backward_weights,
                                        data.has_value() ? &*data : nullptr);
  }

  ConvolutionOptions options_;
};

// oneDNN's inner product, on weights whose formats convert row by row.
class Linear : public Layer {
 public:
  explicit Linear(LinearOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool input_gradient) const override {
    const AffineParameters affine{options_.name, options_.weights,
                                  options_.bias, options_.relu};
    LOCKSTEP_RETURN_IF_ERROR(CheckAffineParameters(affine, *context.parameters,
                                                   WeightsShape(input),
                                                   options_.out_features));
    if (input.n == 0) {
      return CreateEmptyPlan(*context.parameters,
                             {options_.bias, options_.weights},
                             Shape{.c = options_.out_features});
    }
    std::unique_ptr<LayerPlan> plan;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(options_.name, [&] {
      plan = MakePlan(context, affine, input, input_gradient);
    }));
    return plan;
  }

 private:
  memory::dims WeightsShape(const Shape& input) const {
    const int64_t in = input.c * input.h * input.w;
    const int64_t out = options_.out_features;
    return options_.outputs_first ? memory::dims{out, in}
                                  : memory::dims{in, out};
  }

  std::unique_ptr<LayerPlan> MakePlan(const LayerContext& context,
                                      const AffineParameters& affine,
                                      const Shape& input,
                                      bool input_gradient) const {
    const int64_t out = options_.out_features;
    const auto type = memory::data_type::f32;
    const memory::dims dims{out, input.c, input.h, input.w};
    // Outputs innermost, or outermost, in both, so that the conversion between
    // them moves whole rows, and for a 1x1 input there is none. `any` would
    // pick a blocked format whose conversion costs more than it saves.
    const memory::dims plain_strides =
        options_.outputs_first
            ? memory::dims{input.c * input.h * input.w, input.h * input.w,
                           input.w, 1}
            : memory::dims{1, input.h * input.w * out, input.w * out, out};
    const memory::desc plain(dims, type, plain_strides);
    const auto inner = options_.outputs_first ? memory::format_tag::ohwi
                                              : memory::format_tag::hwio;
    const onednn::InnerProductShape shape{
        .x = ChannelsLast(input),
        .weights = {dims, type, inner},
        .bias = {{out}, type, memory::format_tag::a},
        .y = {{input.n, out}, type, memory::format_tag::ab}};
    const auto forward =
        onednn::InnerProductForward(context.engine, shape, options_.relu);
    const auto backward_weights =
        onednn::InnerProductBackwardWeights(context.engine, shape, forward);
    std::optional<dnnl::inner_product_backward_data::primitive_desc> data;
    if (input_gradient) {
      data = onednn::InnerProductBackwardData(context.engine, shape, forward);
    }
    return std::make_unique<AffinePlan>(
        context, affine, Shape{.n = input.n, .c = out}, plain, forward,
        backward_weights, data.has_value() ? &*data : nullptr);
  }

  LinearOptions options_;
};

}  // namespace

std::unique_ptr<Layer> CreateConvolution(ConvolutionOptions options) {
  return std::make_unique<Convolution>(std::move(options));
}

std::unique_ptr<Layer> CreateLinear(LinearOptions options) {
  return std::make_unique<Linear>(std::move(options));
}

}  // namespace lockstep
