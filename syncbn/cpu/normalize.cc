// One pass over x, and over the residual if there is one.
#include "syncbn/cpu/normalize.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/run_plan.h"
#include "syncbn/cpu/scratch.h"
#include "syncbn/cpu/vector_loops.h"

namespace lockstep {
namespace {

// Inputs x, perhaps the residual; parameters mean, scale, bias; output y.
template <typename T, bool relu, bool residual>
struct NormalizeOperation {
  static constexpr int kInputs = residual ? 2 : 1;
  static constexpr int kParameters = 3;
  static constexpr int kOutputs = 1;

  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T* parameters,
                                           T* outputs) {
    T y = (inputs[0] - parameters[0]) * parameters[1] + parameters[2];
    if constexpr (residual) y += inputs[1];
    if constexpr (relu) y = Relu(y);
    outputs[0] = y;
  }
};

template <typename T>
struct Parameters {
  const T* mean;
  const T* scale;
  const T* bias;
};

// memory: [3, plan.parameters()].
template <typename T>
Parameters<T> MakeParameters(const BatchNormKernels::NormalizeCall& call,
                             const RunPlan& plan, T* memory) {
  const StatisticsRecord layout = {.channels = plan.channels,
                                   .type = StatisticsTypeOf(call.x.type)};
  const T* const saved_mean =
      reinterpret_cast<const T*>(call.saved + layout.mean_offset());
  const T* const inverse =
      reinterpret_cast<const T*>(call.saved + layout.second_offset());
  const T* const weight = static_cast<const T*>(call.weight.data);
  const T* const saved_bias = static_cast<const T*>(call.bias.data);
  const bool has_weight = call.weight.count > 0;
  const bool has_bias = call.bias.count > 0;
  const int64_t size = plan.parameters();
  T* const mean = memory;
  T* const scale = mean + size;
  T* const bias = scale + size;
  for (int64_t j = 0; j < plan.channels; ++j) {
    mean[j] = saved_mean[j];
    scale[j] = has_weight ? inverse[j] * weight[j] : inverse[j];
    bias[j] = has_bias ? saved_bias[j] : T{0};
  }
  for (T* array : {mean, scale, bias}) {
    RepeatChannels(plan.channels, size, array);
  }
  return {mean, scale, bias};
}

template <typename E, bool relu, bool residual>
void RunOperation(const BatchNormKernels::NormalizeCall& call,
                  const RunPlan& plan,
                  const Parameters<ComputeType<E>>& parameters,
                  VectorUnit unit) {
  using Operation = NormalizeOperation<ComputeType<E>, relu, residual>;
  ElementwiseArgs<E, Operation> args;
  args.plan = plan;
  args.inputs[0] = static_cast<const E*>(call.x.data);
  if constexpr (residual) {
    args.inputs[1] = static_cast<const E*>(call.residual.data);
  }
  args.parameters = {parameters.mean, parameters.scale, parameters.bias};
  args.outputs = {static_cast<E*>(call.y.data)};
  RunElementwise(unit, args);
}

struct NormalizeForType {
  template <typename E>
  static void Run(const BatchNormKernels::NormalizeCall& call,
                  const RunPlan& plan, std::byte* memory, VectorUnit unit) {
    using T = ComputeType<E>;
    const Parameters<T> parameters =
        MakeParameters(call, plan, reinterpret_cast<T*>(memory));
    const bool residual = call.residual.count > 0;
    if (call.relu && residual) {
      RunOperation<E, true, true>(call, plan, parameters, unit);
    } else if (call.relu) {
      RunOperation<E, true, false>(call, plan, parameters, unit);
    } else if (residual) {
      RunOperation<E, false, true>(call, plan, parameters, unit);
    } else {
      RunOperation<E, false, false>(call, plan, parameters, unit);
    }
  }
};

}  // namespace

absl::Status NormalizeBatch(const BatchNormKernels::NormalizeCall& call,
                            VectorUnit unit, Scratch& scratch) {
  const RunPlan plan = MakeRunPlan(call.shape);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(3 * plan.parameters() *
                      SizeOf(StatisticsTypeOf(call.x.type))));
  ForActivationType<NormalizeForType>(call.x.type, call, plan, memory, unit);
  return absl::OkStatus();
}

}  // namespace lockstep
