// The order of conversions and primitives in a step of an affine layer.
#include "models/cpu/affine_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/cpu/onednn_adapter.h"

namespace lockstep {

absl::Status CheckAffineParameters(const AffineParameters& affine,
                                   const Parameters& parameters,
                                   const std::vector<int64_t>& weights_shape,
                                   int64_t bias_size) {
  const auto check = [&](int index,
                         const std::vector<int64_t>& want) -> absl::Status {
    if (index < 0 || index >= parameters.count()) {
      return absl::InvalidArgumentError(
          absl::StrCat(affine.layer, ": no parameter ", index, " among ",
                       parameters.count()));
    }
    const ParameterSpec& spec = parameters.specs()[index];
    if (spec.shape == want) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        affine.layer, ": parameter ", spec.name, " is [",
        absl::StrJoin(spec.shape, ","), "], the layer and its input need [",
        absl::StrJoin(want, ","), "]"));
  };
  LOCKSTEP_RETURN_IF_ERROR(check(affine.weights, weights_shape));
  return check(affine.bias, {bias_size});
}

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

}  // namespace lockstep
