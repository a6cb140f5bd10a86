// Lets oneDNN choose the weights' format and keeps activations channels last.
#include "models/cpu/convolution.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/affine_plan.h"
#include "models/cpu/empty_plan.h"
#include "models/cpu/onednn_adapter.h"
#include "models/cpu/primitive.h"
#include "models/cpu/shape.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

using dnnl::memory;

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

}  // namespace

std::unique_ptr<Layer> CreateConvolution(ConvolutionOptions options) {
  return std::make_unique<Convolution>(std::move(options));
}

}  // namespace lockstep
