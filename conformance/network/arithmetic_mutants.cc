// Bugs of arithmetic, which one rank has as N do: what is measured on it lets
// them through, and only Tolerances says so.
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "conformance/network/norm_step.h"
#include "models/buffers.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

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

std::vector<NetworkMutant> ArithmeticMutants() {
  const NetworkRun two = {.deal = {4, 4}, .steps = 1};
  return {
      {"RunningInBFloat16",
       "running statistics are rounded to bfloat16, on one rank too",
       two,
       ChangingBuffers(CoarsenBuffers),
       {"Tolerances"},
       "Tolerances",
       "1.running_mean is computed in a coarser type than float32?",
       /*everywhere=*/true},
      {"LossInBFloat16",
       "the loss is rounded to bfloat16, on one rank too",
       two,
       Stepping(CoarsenLoss),
       {"Tolerances"},
       "Tolerances",
       "the loss is computed in a coarser type than float32?",
       /*everywhere=*/true},
      {"GradientsInBFloat16",
       "gradients are rounded to bfloat16, on one rank too",
       two,
       Stepping(CoarsenGradients),
       {"Tolerances"},
       "Tolerances",
       "the gradient of 0.weight is computed in a coarser type than float32?",
       /*everywhere=*/true},
  };
}

}  // namespace lockstep
