// The operations on each activation by itself: normalising forward, the
// gradient of the input backward, and what oneDNN's batch norm leaves to be
// done.
#include "syncbn/cpu/elementwise.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

// Of parameters.
constexpr int kNormalizeArrays = 3;

// Inputs x, perhaps the residual; parameters mean, scale, bias; output y.
template <typename T, bool relu, bool residual>
struct NormalizeOperation {
  static constexpr int kInputs = residual ? 2 : 1;
  static constexpr int kParameters = kNormalizeArrays;
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
struct NormalizeParameters {
  const T* mean;
  const T* scale;
  const T* bias;
};

// memory: [kNormalizeArrays, plan.parameters()].
template <typename T>
NormalizeParameters<T> MakeNormalizeParameters(
    const BatchNormKernels::NormalizeCall& call, const RunPlan& plan,
    T* memory) {
  const StatisticsRecord layout = RecordOf(plan.channels, call.x.type);
  const T* const saved_mean = layout.Mean<T>(call.saved);
  const T* const inverse = layout.Second<T>(call.saved);
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
void RunNormalize(const BatchNormKernels::NormalizeCall& call,
                  const RunPlan& plan,
                  const NormalizeParameters<ComputeType<E>>& parameters,
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
    const NormalizeParameters<T> parameters =
        MakeNormalizeParameters(call, plan, reinterpret_cast<T*>(memory));
    const bool residual = call.residual.count > 0;
    if (call.relu && residual) {
      RunNormalize<E, true, true>(call, plan, parameters, unit);
    } else if (call.relu) {
      RunNormalize<E, true, false>(call, plan, parameters, unit);
    } else if (residual) {
      RunNormalize<E, false, true>(call, plan, parameters, unit);
    } else {
      RunNormalize<E, false, false>(call, plan, parameters, unit);
    }
  }
};

// Of parameters.
constexpr int kGradientArrays = 4;

// Inputs dy, then y with ReLU, then x where the statistics are the batch's;
// parameters a, b, c and mean as the header has them; outputs dx, then perhaps
// g.
template <typename T, bool batch, bool relu, bool residual>
struct InputGradient {
  static constexpr int kInputs = 1 + relu + batch;
  static constexpr int kParameters = batch ? kGradientArrays : 1;
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

// memory: [kGradientArrays, plan.parameters()]: a, b, c, mean.
template <typename T>
void MakeGradientParameters(const BatchNormKernels::BackwardCall& call,
                            const RunPlan& plan, int64_t count, T* memory) {
  const StatisticsRecord layout = RecordOf(plan.channels, call.x.type);
  const T* const saved_mean = layout.Mean<T>(call.saved);
  const T* const inverse = layout.Second<T>(call.saved);
  const T* const weight = static_cast<const T*>(call.weight.data);
  const bool has_weight = call.weight.count > 0;
  const int64_t size = plan.parameters();
  for (int64_t j = 0; j < plan.channels; ++j) {
    memory[j] = has_weight ? inverse[j] * weight[j] : inverse[j];
  }
  if (count > 0) {
    const T* const sum = static_cast<const T*>(call.sums.data);
    const double n = static_cast<double>(count);
    for (int64_t j = 0; j < plan.channels; ++j) {
      const double product = sum[plan.channels + j];
      memory[size + j] = static_cast<T>(double{sum[j]} / n);
      memory[2 * size + j] = static_cast<T>(product / n * double{inverse[j]});
      memory[3 * size + j] = saved_mean[j];
    }
  }
  for (int k = 0; k < (count > 0 ? kGradientArrays : 1); ++k) {
    RepeatChannels(plan.channels, size, memory + k * size);
  }
}

template <typename E, bool batch, bool relu, bool residual>
void RunInputGradient(const BatchNormKernels::BackwardCall& call,
                      const RunPlan& plan, const ComputeType<E>* parameters,
                      VectorUnit unit) {
  using Operation = InputGradient<ComputeType<E>, batch, relu, residual>;
  ElementwiseArgs<E, Operation> args;
  args.plan = plan;
  args.inputs[0] = static_cast<const E*>(call.dy.data);
  if constexpr (relu) {
    args.inputs[1] = static_cast<const E*>(call.y.data);
  }
  if constexpr (batch) {
    args.inputs[1 + relu] = static_cast<const E*>(call.x.data);
  }
  for (int k = 0; k < Operation::kParameters; ++k) {
    args.parameters[k] = parameters + k * plan.parameters();
  }
  args.outputs[0] = static_cast<E*>(call.dx.data);
  if constexpr (residual) {
    args.outputs[1] = static_cast<E*>(call.dresidual.data);
  }
  RunElementwise(unit, args);
}

template <typename E, bool batch, bool relu>
void RunResidual(const BatchNormKernels::BackwardCall& call,
                 const RunPlan& plan, const ComputeType<E>* parameters,
                 VectorUnit unit) {
  if (call.dresidual.count > 0) {
    RunInputGradient<E, batch, relu, true>(call, plan, parameters, unit);
  } else {
    RunInputGradient<E, batch, relu, false>(call, plan, parameters, unit);
  }
}

template <typename E, bool batch>
void RunRelu(const BatchNormKernels::BackwardCall& call, const RunPlan& plan,
             const ComputeType<E>* parameters, VectorUnit unit) {
  if (call.relu) {
    RunResidual<E, batch, true>(call, plan, parameters, unit);
  } else {
    RunResidual<E, batch, false>(call, plan, parameters, unit);
  }
}

struct InputForType {
  template <typename E>
  static void Run(const BatchNormKernels::BackwardCall& call,
                  const RunPlan& plan, std::byte* memory, VectorUnit unit) {
    using T = ComputeType<E>;
    T* const parameters = reinterpret_cast<T*>(memory);
    int64_t count;
    std::memcpy(&count, call.saved, sizeof(count));
    MakeGradientParameters(call, plan, count, parameters);
    if (count > 0) {
      RunRelu<E, true>(call, plan, parameters, unit);
    } else {
      RunRelu<E, false>(call, plan, parameters, unit);
    }
  }
};

// A run's values; their places mean nothing here.
constexpr int64_t kRun = 4096;

RunPlan FlatPlan(int64_t size) {
  RunPlan plan;
  plan.run = kRun;
  plan.runs = (size + kRun - 1) / kRun;
  plan.size = size;
  return plan;
}

template <typename T, bool add, bool relu>
struct AddReluOperation {
  static constexpr int kInputs = 1 + add;
  static constexpr int kParameters = 0;
  static constexpr int kOutputs = 1;

  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T*,
                                           T* outputs) {
    T y = inputs[0];
    if constexpr (add) y += inputs[1];
    if constexpr (relu) y = Relu(y);
    outputs[0] = y;
  }
};

template <typename T>
struct MaskOperation {
  static constexpr int kInputs = 2;
  static constexpr int kParameters = 0;
  static constexpr int kOutputs = 1;

  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T*,
                                           T* outputs) {
    outputs[0] = ReluGradient(inputs[0], inputs[1]);
  }
};

struct AddReluForType {
  template <typename E>
  static void Run(const ConstBuffer& normal, const ConstBuffer& residual,
                  bool relu, const Buffer& y) {
    if (residual.count == 0) {
      if (relu) RunOperation<E, false, true>(normal, residual, y);
    } else if (relu) {
      RunOperation<E, true, true>(normal, residual, y);
    } else {
      RunOperation<E, true, false>(normal, residual, y);
    }
  }

 private:
  template <typename E, bool add, bool relu>
  static void RunOperation(const ConstBuffer& normal,
                           const ConstBuffer& residual, const Buffer& y) {
    ElementwiseArgs<E, AddReluOperation<ComputeType<E>, add, relu>> args;
    args.plan = FlatPlan(y.count);
    args.inputs[0] = static_cast<const E*>(normal.data);
    if constexpr (add) args.inputs[1] = static_cast<const E*>(residual.data);
    args.outputs[0] = static_cast<E*>(y.data);
    RunElementwise(BestVectorUnit(), args);
  }
};

struct MaskForType {
  template <typename E>
  static void Run(const ConstBuffer& y, const ConstBuffer& dy,
                  const Buffer& g) {
    ElementwiseArgs<E, MaskOperation<ComputeType<E>>> args;
    args.plan = FlatPlan(y.count);
    args.inputs = {static_cast<const E*>(y.data),
                   static_cast<const E*>(dy.data)};
    args.outputs = {static_cast<E*>(g.data)};
    RunElementwise(BestVectorUnit(), args);
  }
};

}  // namespace

absl::Status CpuBatchNormKernels::Normalize(const NormalizeCall& call) {
  const RunPlan plan = MakeRunPlan(call.shape);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch_.Reserve(kNormalizeArrays * plan.parameters() *
                       SizeOf(StatisticsTypeOf(call.x.type))));
  ForActivationType<NormalizeForType>(call.x.type, call, plan, memory, unit_);
  return absl::OkStatus();
}

absl::Status CpuBatchNormKernels::BackwardInput(const BackwardCall& call) {
  const RunPlan plan = MakeRunPlan(call.shape);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch_.Reserve(kGradientArrays * plan.parameters() *
                       SizeOf(StatisticsTypeOf(call.x.type))));
  ForActivationType<InputForType>(call.x.type, call, plan, memory, unit_);
  return absl::OkStatus();
}

void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y) {
  ForActivationType<AddReluForType>(y.type, normal, residual, relu, y);
}

void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g) {
  ForActivationType<MaskForType>(g.type, y, dy, g);
}

}  // namespace lockstep
