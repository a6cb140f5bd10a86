// What convolution and linear layers have in common once oneDNN has chosen
// their primitives: y = W x + b, then perhaps ReLU.
#ifndef LOCKSTEP_MODELS_CPU_AFFINE_PLAN_H_
#define LOCKSTEP_MODELS_CPU_AFFINE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/cpu/layer.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {

// A layer whose weights have one flat parameter and its bias another.
struct AffineParameters {
  std::string layer;  // For messages.
  int weights = 0;    // Indices into Parameters; the bias's is the higher.
  int bias = 0;
  bool relu = false;
};

// Errors: kInvalidArgument if the parameters do not have these shapes.
absl::Status CheckAffineParameters(const AffineParameters& affine,
                                   const Parameters& parameters,
                                   const std::vector<int64_t>& weights_shape,
                                   int64_t bias_size);

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

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_AFFINE_PLAN_H_
