// Convolution and linear layers by oneDNN: y = W x + b, with an optional ReLU.
#include "models/cpu/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cpu/few_pixels.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/cpu/weights.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

using dnnl::memory;
using onednn::Desc;

// A layer with one weight parameter and at most one bias parameter.
struct Affine {
  std::string layer;  // For messages.
  int weight = kNoTensor;
  int bias = kNoTensor;
  bool relu = false;
};

// The descriptors of a layer's three primitives. `data` has no value if no
// input gradient is wanted.
template <typename F, typename W, typename D>
struct Descriptors {
  typename F::primitive_desc forward;
  typename W::primitive_desc weights;
  std::optional<typename D::primitive_desc> data;
};

// Runs the conversions and primitives of such a layer in a step. Scratch:
// converted weights or their gradients, then oneDNN's scratchpad. Saved: the
// weights that the data primitive reads, unless it reads the plain ones.
class AffinePlan : public OperationPlan {
 public:
  // plain: the format of the weights in Parameters, float32. Throws
  // dnnl::error.
  template <typename F, typename W, typename D>
  AffinePlan(const PlanContext& context, Affine affine, int64_t y_size,
             const Desc& plain, const Descriptors<F, W, D>& of)
      : context_(context), affine_(std::move(affine)) {
    const auto& [forward, weights, data] = of;
    backward_reads_y = affine_.relu;
    forward_ = Primitive(context.engine, F(forward),
                         {{DNNL_ARG_SRC, forward.src_desc()},
                          {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                          {DNNL_ARG_BIAS, forward.bias_desc()},
                          {DNNL_ARG_DST, forward.dst_desc()},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    Reserve(forward.weights_desc(), forward.scratchpad_desc());
    weights_ = Primitive(context.engine, W(weights),
                         {{DNNL_ARG_SRC, weights.src_desc()},
                          {DNNL_ARG_DIFF_DST, weights.diff_dst_desc()},
                          {DNNL_ARG_DIFF_WEIGHTS, weights.diff_weights_desc()},
                          {DNNL_ARG_DIFF_BIAS, weights.diff_bias_desc()},
                          {DNNL_ARG_SCRATCHPAD, weights.scratchpad_desc()}});
    gradients_ = Reorder(context.engine, weights.diff_weights_desc(), plain);
    Reserve(weights.diff_weights_desc(), weights.scratchpad_desc());
    if (affine_.relu) PlanRelu(y_size);
    std::optional<Desc> data_weights;
    if (data.has_value()) {
      data_weights = data->weights_desc();
      data_ = Primitive(context.engine, D(*data),
                        {{DNNL_ARG_DIFF_SRC, data->diff_src_desc()},
                         {DNNL_ARG_WEIGHTS, data->weights_desc()},
                         {DNNL_ARG_DIFF_DST, data->diff_dst_desc()},
                         {DNNL_ARG_SCRATCHPAD, data->scratchpad_desc()}});
      Reserve(Desc(), data->scratchpad_desc());
    }
    conversion_ = WeightConversion(context.engine, plain,
                                   forward.weights_desc(), data_weights);
    saved_bytes = conversion_.data_bytes();
    scratch_bytes = weights_bytes_ + scratchpad_bytes_;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(affine_.layer, [&] {
      void* const scratchpad = Offset(buffers.scratch, weights_bytes_);
      const void* const weights = conversion_.Run(
          context_.stream, Value(affine_.weight),
          conversion_.is_shared() ? buffers.saved : buffers.scratch,
          buffers.training ? buffers.saved : nullptr);
      forward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                     {DNNL_ARG_WEIGHTS, weights},
                                     {DNNL_ARG_BIAS, Value(affine_.bias)},
                                     {DNNL_ARG_DST, buffers.y},
                                     {DNNL_ARG_SCRATCHPAD, scratchpad}});
    });
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    void* const scratchpad = Offset(buffers.scratch, weights_bytes_);
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(affine_.layer, [&] {
      if (affine_.relu) {
        relu_.Run(context_.stream, {{DNNL_ARG_DST, buffers.y},
                                    {DNNL_ARG_DIFF_DST, buffers.dy},
                                    {DNNL_ARG_DIFF_SRC, buffers.dy},
                                    {DNNL_ARG_SCRATCHPAD, scratchpad}});
      }
      WeightGradients(buffers, scratchpad);
    }));
    // `ready` is called outside CatchOnednn, because it is the caller's code.
    if (affine_.bias != kNoTensor) ready(affine_.bias);
    ready(affine_.weight);
    if (buffers.dx == nullptr) return absl::OkStatus();
    return CatchOnednn(affine_.layer, [&] {
      const void* const weights =
          saved_bytes > 0 ? buffers.saved : Value(affine_.weight);
      data_.Run(context_.stream, {{DNNL_ARG_DIFF_SRC, buffers.dx},
                                  {DNNL_ARG_WEIGHTS, weights},
                                  {DNNL_ARG_DIFF_DST, buffers.dy},
                                  {DNNL_ARG_SCRATCHPAD, scratchpad}});
    });
  }

 private:
  void PlanRelu(int64_t y_size) {
    // ReLU works element by element, so one flat dimension serves any layout.
    constexpr auto kRelu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;
    const Desc flat = Flat(y_size, context_.type);
    const auto desc = onednn::EltwiseBackward(
        onednn::EltwiseForward(context_.engine, kRelu, flat), context_.engine,
        kRelu, flat);
    relu_ = Primitive(context_.engine, dnnl::eltwise_backward(desc),
                      {{DNNL_ARG_DST, flat},
                       {DNNL_ARG_DIFF_DST, flat},
                       {DNNL_ARG_DIFF_SRC, flat},
                       {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}});
    Reserve(Desc(), desc.scratchpad_desc());
  }

  void Reserve(const Desc& weights, const Desc& scratchpad) {
    weights_bytes_ = std::max(weights_bytes_, AlignedBytes(weights));
    scratchpad_bytes_ = std::max(scratchpad_bytes_, AlignedBytes(scratchpad));
  }

  const float* Value(int index) const {
    if (index == kNoTensor) return nullptr;
    return std::as_const(*context_.parameters).value(index).data();
  }

  void WeightGradients(const BackwardBuffers& buffers, void* scratchpad) {
    Parameters& parameters = *context_.parameters;
    float* const plain = parameters.gradient(affine_.weight).data();
    const bool converted = !gradients_.is_identity();
    weights_.Run(
        context_.stream,
        {{DNNL_ARG_SRC, buffers.x},
         {DNNL_ARG_DIFF_DST, buffers.dy},
         {DNNL_ARG_DIFF_WEIGHTS, converted ? buffers.scratch : plain},
         {DNNL_ARG_DIFF_BIAS, affine_.bias == kNoTensor
                                  ? nullptr
                                  : parameters.gradient(affine_.bias).data()},
         {DNNL_ARG_SCRATCHPAD, scratchpad}});
    if (converted) gradients_.Run(context_.stream, buffers.scratch, plain);
  }

  PlanContext context_;
  Affine affine_;
  int64_t weights_bytes_ = 0;
  int64_t scratchpad_bytes_ = 0;
  Primitive forward_, weights_, data_, relu_;
  WeightConversion conversion_;
  Reorder gradients_;
};

// Creates the plan of such a layer by MakePlan.
PlanOr PlanAffine(const PlanContext& context, const Affine& affine,
                  const PlanRequest& request,
                  absl::FunctionRef<std::unique_ptr<OperationPlan>()> make) {
  std::vector<int> indices = {affine.weight};
  if (affine.bias != kNoTensor) indices.insert(indices.begin(), affine.bias);
  return MakePlan(context, request, std::move(indices), make);
}

}  // namespace

PlanOr PlanConvolution(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<ConvolutionOp>(request.operation->kind);
  const bool winograd =
      context.layout == Layout::kNchw16c &&
      IsWinograd(context.convolution, op, request.x, request.output);
  if (!winograd && UsesFewPixelsPlan(context, request)) {
    return PlanFewPixels(context, request);
  }
  const Affine affine = {request.operation->name, op.weight, op.bias, op.relu};
  return PlanAffine(context, affine, request, [&] {
    const onednn::Convolution convolution = {
        .x = Activations(request.x, context.type, context.layout),
        .y = Activations(request.output, context.type, context.layout),
        .bias = op.bias == kNoTensor
                    ? Desc()
                    : Flat(request.output.c, DataType::kFloat32),
        .weights = {request.output.c, request.x.c, op.kernel, op.kernel},
        .stride = {op.stride, op.stride},
        .padding = {op.padding, op.padding}};
    // Each direction chooses separately, because one may lack Winograd for
    // these sizes.
    std::vector<std::string> algorithms;
    const auto descriptor = [&](const auto& create) {
      if (winograd) {
        try {
          auto made = create(dnnl::algorithm::convolution_winograd);
          algorithms.push_back("winograd");
          return made;
        } catch (const dnnl::error& error) {
          if (error.status != dnnl_unimplemented) throw;
        }
      }
      algorithms.push_back("direct");
      return create(dnnl::algorithm::convolution_direct);
    };
    const auto forward = descriptor([&](dnnl::algorithm algorithm) {
      return onednn::ConvolutionForward(context.engine, algorithm, convolution,
                                        op.relu);
    });
    Descriptors<dnnl::convolution_forward, dnnl::convolution_backward_weights,
                dnnl::convolution_backward_data>
        of = {forward, descriptor([&](dnnl::algorithm algorithm) {
                return onednn::ConvolutionWeights(forward, context.engine,
                                                  algorithm, convolution);
              }),
              std::nullopt};
    if (request.input_gradient) {
      of.data = descriptor([&](dnnl::algorithm algorithm) {
        return onednn::ConvolutionData(forward, context.engine, algorithm,
                                       convolution);
      });
    }
    const Desc plain(convolution.weights, memory::data_type::f32,
                     memory::format_tag::oihw);
    auto plan = std::make_unique<AffinePlan>(context, affine,
                                             request.output.size(), plain, of);
    plan->algorithm_name =
        std::ranges::count(algorithms, algorithms[0]) == std::ssize(algorithms)
            ? algorithms[0]
            : absl::StrJoin(algorithms, ", ");
    return plan;
  });
}

// Uses oneDNN's inner product, on weights whose formats convert row by row.
PlanOr PlanLinear(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<LinearOp>(request.operation->kind);
  const Affine affine = {request.operation->name, op.weight, op.bias, op.relu};
  return PlanAffine(context, affine, request, [&] {
    Shape in = request.x;
    if (op.per_position) {  // Each is a sample of one pixel.
      in = {.n = in.n * in.h * in.w, .c = in.c};
    }
    const int64_t out = request.output.c;
    const int64_t features = in.c * in.h * in.w;
    const memory::dims dims{out, in.c, in.h, in.w};
    // Outputs are innermost, or outermost, in both formats. The conversion
    // between them therefore moves whole rows, and a 1x1 input needs none.
    // `any` would pick a blocked format whose conversion costs more than it
    // saves.
    const Desc plain(dims, memory::data_type::f32,
                     op.inputs_first
                         ? memory::dims{1, in.h * in.w * out, in.w * out, out}
                         : memory::dims{features, in.h * in.w, in.w, 1});
    const auto inner =
        op.inputs_first ? memory::format_tag::hwio : memory::format_tag::ohwi;
    const Desc x = Activations(in, context.type, Layout::kNhwc);
    const Desc weights(dims, OnednnType(context.type), inner);
    const Desc gradients(dims, memory::data_type::f32, inner);
    const Desc bias = Flat(out, DataType::kFloat32);
    const Desc y = Rows(in.n, out, context.type);
    const auto forward = onednn::Forward<dnnl::inner_product_forward>(
        context.engine, {.relu = op.relu}, dnnl::prop_kind::forward_training, x,
        weights, bias, y);
    Descriptors<dnnl::inner_product_forward,
                dnnl::inner_product_backward_weights,
                dnnl::inner_product_backward_data>
        of = {forward,
              onednn::Backward<dnnl::inner_product_backward_weights>(
                  context.engine, forward, x, gradients, bias, y),
              std::nullopt};
    if (request.input_gradient) {
      of.data = onednn::Backward<dnnl::inner_product_backward_data>(
          context.engine, forward, x, weights, y);
    }
    return std::make_unique<AffinePlan>(context, affine, in.n * out, plain, of);
  });
}

}  // namespace lockstep
