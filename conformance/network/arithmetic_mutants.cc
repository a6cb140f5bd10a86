// Training steps done otherwise; and mutants of arithmetic, which one rank has
// as N do: what is measured on it lets them through, and only Tolerances says
// so.
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "conformance/decorators.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "models/model.h"

namespace lockstep {
namespace {

// Keeps the group that the model was converted with.
class NormModelMutant : public ModelMutant {
 public:
  NormModelMutant(Model& inner, NormStep step)
      : ModelMutant(inner, [this, step = std::move(step)](
                               Model& model, const Batch& batch, float scale,
                               Ready ready) {
          return step(model, group_, batch, scale, ready);
        }) {}

  int ConvertSyncBatchNorm(Communicator& group) override {
    group_ = &group;
    return ModelMutant::ConvertSyncBatchNorm(group);
  }

 private:
  Communicator* group_ = nullptr;
};

// What bfloat16 makes of it.
float Coarse(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x8000u) &
                              0xffff0000u);
}

void CoarsenAll(std::span<float> values) {
  for (float& value : values) value = Coarse(value);
}

void CoarsenBuffers(int, std::span<const float>, Buffers& buffers) {
  CoarsenAll(buffers.floats());
}

NormStep CoarsenLoss(const NetworkRun&, int) {
  return [](Model& model, Communicator*, const Batch& batch, float scale,
            Ready ready) -> absl::StatusOr<Metrics> {
    LOCKSTEP_ASSIGN_OR_RETURN(Metrics metrics,
                              model.ForwardBackward(batch, scale, ready));
    metrics.loss_sum = Coarse(static_cast<float>(metrics.loss_sum));
    return metrics;
  };
}

NormStep CoarsenGradients(const NetworkRun&, int) {
  return [](Model& model, Communicator*, const Batch& batch, float scale,
            Ready ready) -> absl::StatusOr<Metrics> {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                              model.ForwardBackward(batch, scale, [](int) {}));
    CoarsenAll(model.parameters().gradients());
    ReadyAll(model, ready);
    return metrics;
  };
}

}  // namespace

NetworkMutation Stepping(
    std::function<NormStep(const NetworkRun&, int rank)> step) {
  NetworkMutation mutation;
  mutation.model = [step = std::move(step)](Model& inner, const NetworkRun& run,
                                            int rank) {
    return std::make_unique<NormModelMutant>(inner, step(run, rank));
  };
  return mutation;
}

NetworkMutation ChangingBuffers(
    std::function<void(int rank, std::span<const float> before, Buffers&)>
        change) {
  return Stepping([change = std::move(change)](const NetworkRun&, int rank) {
    return [change, rank](Model& model, Communicator*, const Batch& batch,
                          float scale, Ready ready) {
      const auto running = model.buffers().floats();
      const std::vector<float> before(running.begin(), running.end());
      auto metrics = model.ForwardBackward(batch, scale, ready);
      change(rank, before, model.buffers());
      return metrics;
    };
  });
}

void ReadyAll(Model& model, Ready ready) {
  for (int i = model.parameters().count() - 1; i >= 0; --i) ready(i);
}

std::vector<Mutant> ArithmeticMutants() {
  const NetworkRun two = {.deal = {4, 4}, .steps = 1};
  return {
      Planted({"RunningInBFloat16",
               "running statistics are rounded to bfloat16, on one rank too",
               {"Tolerances"},
               "1.running_mean is computed in a coarser type than float32?"},
              two, ChangingBuffers(CoarsenBuffers),
              /*everywhere=*/true),
      Planted({"LossInBFloat16",
               "the loss is rounded to bfloat16, on one rank too",
               {"Tolerances"},
               "the loss is computed in a coarser type than float32?"},
              two, Stepping(CoarsenLoss),
              /*everywhere=*/true),
      Planted({"GradientsInBFloat16",
               "gradients are rounded to bfloat16, on one rank too",
               {"Tolerances"},
               "the gradient of 0.weight is computed in a coarser type than "
               "float32?"},
              two, Stepping(CoarsenGradients),
              /*everywhere=*/true),
  };
}

}  // namespace lockstep
