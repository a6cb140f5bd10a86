// The gradient of the input, once the sums over the batch are known.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/backward.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/run_plan.h"
#include "syncbn/cpu/scratch.h"
#include "syncbn/cpu/vector_loops.h"

namespace lockstep {
namespace {

constexpr int kArrays = 4;

// Inputs dy, then y with ReLU, then x where the statistics are the batch's;
// parameters a, b, c and mean as the header has them; outputs dx, then perhaps
// g.
template <typename T, bool batch, bool relu, bool residual>
struct InputGradient {
  static constexpr int kInputs = 1 + relu + batch;
  static constexpr int kParameters = batch ? 4 : 1;
  static constexpr int kOutputs = 1 + residual;

  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T* parameters,
                                           T* outputs) {
    T g = inputs[0];
    if constexpr (relu) g = ReluGradient(inputs[1], g);
    if constexpr (residual) outputs[1] = g;
    if constexpr (batch) {
      g = (g - parameters[1]) -
          (inputs[1 + relu] - parameters[3]) * parameters[2];
    }
    outputs[0] = parameters[0] * g;
  }
};

struct Gradients {
  const BatchNormKernels::BackwardCall& call;
  ConstBuffer sums;
  Buffer dx;
  Buffer dresidual;
};

// memory: [kArrays, plan.parameters()]: a, b, c, mean.
template <typename T>
void MakeParameters(const Gradients& gradients, const RunPlan& plan,
                    int64_t count, T* memory) {
  const BatchNormKernels::BackwardCall& call = gradients.call;
  const StatisticsRecord layout = {.channels = plan.channels,
                                   .type = StatisticsTypeOf(call.x.type)};
  const T* const saved_mean =
      reinterpret_cast<const T*>(call.saved + layout.mean_offset());
  const T* const inverse =
      reinterpret_cast<const T*>(call.saved + layout.second_offset());
  const T* const weight = static_cast<const T*>(call.weight.data);
  const bool has_weight = call.weight.count > 0;
  const int64_t size = plan.parameters();
  for (int64_t j = 0; j < plan.channels; ++j) {
    memory[j] = has_weight ? inverse[j] * weight[j] : inverse[j];
  }
  if (count > 0) {
    const T* const sum = static_cast<const T*>(gradients.sums.data);
    const double n = static_cast<double>(count);
    for (int64_t j = 0; j < plan.channels; ++j) {
      const double product = sum[plan.channels + j];
      memory[size + j] = static_cast<T>(double{sum[j]} / n);
      memory[2 * size + j] = static_cast<T>(product / n * double{inverse[j]});
      memory[3 * size + j] = saved_mean[j];
    }
  }
  for (int k = 0; k < (count > 0 ? kArrays : 1); ++k) {
    RepeatChannels(plan.channels, size, memory + k * size);
  }
}

template <typename E, bool batch, bool relu, bool residual>
void RunOperation(const Gradients& gradients, const RunPlan& plan,
                  const ComputeType<E>* parameters, VectorUnit unit) {
  using Operation = InputGradient<ComputeType<E>, batch, relu, residual>;
  ElementwiseArgs<E, Operation> args;
  args.plan = plan;
  args.inputs[0] = static_cast<const E*>(gradients.call.dy.data);
  if constexpr (relu) {
    args.inputs[1] = static_cast<const E*>(gradients.call.y.data);
  }
  if constexpr (batch) {
    args.inputs[1 + relu] = static_cast<const E*>(gradients.call.x.data);
  }
  for (int k = 0; k < Operation::kParameters; ++k) {
    args.parameters[k] = parameters + k * plan.parameters();
  }
  args.outputs[0] = static_cast<E*>(gradients.dx.data);
  if constexpr (residual) {
    args.outputs[1] = static_cast<E*>(gradients.dresidual.data);
  }
  RunElementwise(unit, args);
}

template <typename E, bool batch, bool relu>
void RunResidual(const Gradients& gradients, const RunPlan& plan,
                 const ComputeType<E>* parameters, VectorUnit unit) {
  if (gradients.dresidual.count > 0) {
    RunOperation<E, batch, relu, true>(gradients, plan, parameters, unit);
  } else {
    RunOperation<E, batch, relu, false>(gradients, plan, parameters, unit);
  }
}

template <typename E, bool batch>
void RunRelu(const Gradients& gradients, const RunPlan& plan,
             const ComputeType<E>* parameters, VectorUnit unit) {
  if (gradients.call.relu) {
    RunResidual<E, batch, true>(gradients, plan, parameters, unit);
  } else {
    RunResidual<E, batch, false>(gradients, plan, parameters, unit);
  }
}

struct InputForType {
  template <typename E>
  static void Run(const Gradients& gradients, const RunPlan& plan,
                  std::byte* memory, VectorUnit unit) {
    using T = ComputeType<E>;
    T* const parameters = reinterpret_cast<T*>(memory);
    int64_t count;
    std::memcpy(&count, gradients.call.saved, sizeof(count));
    MakeParameters(gradients, plan, count, parameters);
    if (count > 0) {
      RunRelu<E, true>(gradients, plan, parameters, unit);
    } else {
      RunRelu<E, false>(gradients, plan, parameters, unit);
    }
  }
};

}  // namespace

absl::Status BackwardToInput(const BatchNormKernels::BackwardCall& call,
                             const ConstBuffer& sums, const Buffer& dx,
                             const Buffer& dresidual, VectorUnit unit,
                             Scratch& scratch) {
  const RunPlan plan = MakeRunPlan(call.shape);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(kArrays * plan.parameters() *
                      SizeOf(StatisticsTypeOf(call.x.type))));
  const Gradients gradients = {
      .call = call, .sums = sums, .dx = dx, .dresidual = dresidual};
  ForActivationType<InputForType>(call.x.type, gradients, plan, memory, unit);
  return absl::OkStatus();
}

}  // namespace lockstep
