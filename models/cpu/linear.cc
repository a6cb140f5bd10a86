// oneDNN's inner product, on weights that keep their outputs innermost.
#include "models/cpu/linear.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "models/cpu/affine_plan.h"
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
    LOCKSTEP_RETURN_IF_ERROR(CheckAffineParameters(
        affine, *context.parameters,
        {input.c * input.h * input.w, options_.out_features},
        options_.out_features));
    std::unique_ptr<LayerPlan> plan;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(options_.name, [&] {
      plan = MakePlan(context, affine, input, input_gradient);
    }));
    return plan;
  }

 private:
  std::unique_ptr<LayerPlan> MakePlan(const LayerContext& context,
                                      const AffineParameters& affine,
                                      const Shape& input,
                                      bool input_gradient) const {
    const int64_t out = options_.out_features;
    const auto type = memory::data_type::f32;
    const memory::dims dims{out, input.c, input.h, input.w};
    // Outputs innermost in both, so that the conversion between them moves
    // whole rows, and for a 1x1 input there is none. `any` would pick a blocked
    // format whose conversion costs more than it saves.
    const memory::desc plain(
        dims, type,
        memory::dims{1, input.h * input.w * out, input.w * out, out});
    const onednn::InnerProductShape shape{
        .x = ChannelsLast(input),
        .weights = {dims, type, memory::format_tag::hwio},
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
