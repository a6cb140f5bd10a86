// Element-wise operations without parameters.
#include "syncbn/cpu/relu_passes.h"

#include <cstdint>

#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/run_plan.h"
#include "syncbn/cpu/vector_loops.h"

namespace lockstep {
namespace {

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

void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y) {
  ForActivationType<AddReluForType>(y.type, normal, residual, relu, y);
}

void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g) {
  ForActivationType<MaskForType>(g.type, y, dy, g);
}

}  // namespace lockstep
