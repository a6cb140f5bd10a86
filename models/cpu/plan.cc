#include "models/cpu/plan.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "models/cpu/attention.h"
#include "models/cpu/linear.h"
#include "models/cpu/norm.h"
#include "models/cpu/onednn.h"
#include "models/cpu/pointwise.h"
#include "models/cpu/pool.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"

namespace lockstep {
namespace {

class EmptyPlan : public OperationPlan {
 public:
  EmptyPlan(Parameters& parameters, std::vector<int> indices)
      : parameters_(parameters), indices_(std::move(indices)) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers&) override {
    return absl::OkStatus();
  }

  absl::Status Backward(const BackwardBuffers&,
                        Model::GradientReady ready) override {
    for (const int index : indices_) {
      std::ranges::fill(parameters_.gradient(index), 0.0f);
    }
    for (const int index : indices_) ready(index);
    return absl::OkStatus();
  }

 private:
  Parameters& parameters_;
  const std::vector<int> indices_;
};

}  // namespace

PlanOr CreatePlan(const PlanContext& context, const PlanRequest& request) {
  struct Family {
    const PlanContext& context;
    const PlanRequest& request;
    PlanOr operator()(const ConvolutionOp&) {
      return PlanConvolution(context, request);
    }
    PlanOr operator()(const LinearOp&) { return PlanLinear(context, request); }
    PlanOr operator()(const BatchNormOp&) {
      return PlanBatchNorm(context, request);
    }
    PlanOr operator()(const PoolOp&) { return PlanPool(context, request); }
    PlanOr operator()(const GlobalAveragePoolOp&) {
      return PlanPool(context, request);
    }
    PlanOr operator()(const LayerNormOp&) {
      return PlanLayerNorm(context, request);
    }
    PlanOr operator()(const GeluOp&) { return PlanGelu(context, request); }
    PlanOr operator()(const AttentionOp&) {
      return PlanAttention(context, request);
    }
    PlanOr operator()(const EmbedOp&) { return PlanEmbed(context, request); }
    PlanOr operator()(const FirstPositionOp&) {
      return PlanFirstPosition(context, request);
    }
    PlanOr operator()(const DropoutOp&) {
      return PlanDropout(context, request);
    }
    PlanOr operator()(const AddOp&) { return PlanAdd(context, request); }
  };
  return std::visit(Family{context, request}, request.operation->kind);
}

PlanOr MakePlan(const PlanContext& context, const PlanRequest& request,
                std::vector<int> indices,
                absl::FunctionRef<std::unique_ptr<OperationPlan>()> make) {
  if (request.output.n == 0) {
    return std::make_unique<EmptyPlan>(*context.parameters, std::move(indices));
  }
  std::unique_ptr<OperationPlan> plan;
  LOCKSTEP_RETURN_IF_ERROR(
      CatchOnednn(request.operation->name, [&] { plan = make(); }));
  return plan;
}

}  // namespace lockstep
