// oneDNN's inner product, on weights whose formats convert row by row.
#include "models/cpu/linear.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

std::unique_ptr<Layer> CreateLinear(LinearOptions options) {
  return std::make_unique<Linear>(std::move(options));
}

}  // namespace lockstep
