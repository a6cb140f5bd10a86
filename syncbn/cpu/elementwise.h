// Operations on each activation by itself, with parameters of its channel: the
// frame that normalising and its gradient have in common. For files that are
// compiled with -ffp-contract=off.
#ifndef LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_
#define LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "collectives/algorithms/reduction_kernels.h"
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// An operation:
//
//   template <typename T>
//   struct Operation {
//     static constexpr int kInputs, kParameters, kOutputs;
//     static void Apply(const T* inputs, const T* parameters, T* outputs);
//   };
//
// Outputs may be inputs, but not one another.
template <typename E, typename Operation>
struct ElementwiseArgs {
  RunPlan plan;
  std::array<const E*, Operation::kInputs> inputs;
  std::array<const ComputeType<E>*, Operation::kParameters> parameters;
  std::array<E*, Operation::kOutputs> outputs;

  // Whether to write past the caches, in vectors of so many floats: outputs
  // that are larger than a core's own caches, so that they would be gone before
  // they are needed, and that are none of the inputs.
  bool Streams() const {
    constexpr int64_t kLargeBytes = int64_t{4} << 20;
    if (!std::is_same_v<E, float> || kStreamFloats == 0 ||
        plan.run % kStreamFloats != 0 ||
        plan.size * int64_t{sizeof(E)} < kLargeBytes) {
      return false;
    }
    for (const E* output : outputs) {
      const auto address = reinterpret_cast<uintptr_t>(output);
      if (address % (kStreamFloats * sizeof(float)) != 0) {
        return false;
      }
      for (const E* input : inputs) {
        if (input == output) return false;
      }
    }
    return true;
  }
};

template <typename E, typename Operation>
struct ElementwiseLoop {
  using Compute = ComputeType<E>;
  using Args = ElementwiseArgs<E, Operation>;
  static constexpr int kInputs = Operation::kInputs;
  static constexpr int kParameters = Operation::kParameters;
  static constexpr int kOutputs = Operation::kOutputs;
  static constexpr int64_t kChunk = 512;
  // Elements: long enough for prefetchers, short against a cache.
  static constexpr int64_t kBlock = 1 << 14;

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Args* args, int64_t begin,
                                         int64_t end) {
    // Block by block from the end: the reduction before has read the inputs
    // from the start, so their end is what caches still hold.
    const int64_t block = std::max<int64_t>(1, kBlock / args->plan.run);
    const bool streams = args->Streams();
    for (; end > begin; end -= std::min(block, end - begin)) {
      RunBlock<Unit>(*args, std::max(begin, end - block), end, streams);
    }
    if (streams) FinishStreaming();
  }

 private:
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void RunBlock(const Args& args, int64_t begin,
                                              int64_t end, bool streams) {
    const RunPlan& plan = args.plan;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * plan.run;
      const int64_t n = std::min(plan.run, plan.size - at);
      if (plan.by_column) {
        RunOne<Unit, true>(args, at, n, 0, streams);
      } else {
        RunOne<Unit, false>(args, at, n, i % plan.channels, streams);
      }
    }
  }

  template <typename Unit, bool by_column>
  static LOCKSTEP_SYNCBN_INLINE void RunOne(const Args& args, int64_t at,
                                            int64_t n, int64_t channel,
                                            bool streams) {
    std::array<const Compute*, kParameters> parameters = args.parameters;
    for (auto& parameter : parameters) parameter += channel;
    if constexpr (std::is_same_v<E, Compute>) {
      std::array<const E*, kInputs> inputs = args.inputs;
      std::array<E*, kOutputs> outputs = args.outputs;
      for (auto& input : inputs) input += at;
      for (auto& output : outputs) output += at;
      int64_t done = 0;
      if constexpr (std::is_same_v<E, float> && kStreamFloats > 0) {
        if (streams) {
          done = StreamLoop<by_column>(inputs, parameters, outputs, n);
        }
      }
      for (auto& input : inputs) input += done;
      for (auto& output : outputs) output += done;
      if constexpr (by_column) {
        for (auto& parameter : parameters) parameter += done;
      }
      Loop<by_column>(inputs, parameters, outputs, n - done);
    } else {
      for (int64_t i = 0; i < n; i += kChunk) {
        RunChunk<Unit, by_column>(args, at + i, std::min(kChunk, n - i),
                                  parameters);
        if constexpr (by_column) {
          for (auto& parameter : parameters) parameter += kChunk;
        }
      }
    }
  }

  template <typename Unit, bool by_column>
  static LOCKSTEP_SYNCBN_INLINE void RunChunk(
      const Args& args, int64_t at, int64_t n,
      const std::array<const Compute*, kParameters>& parameters) {
    alignas(64) Compute in[kInputs][kChunk];
    alignas(64) Compute out[kOutputs][kChunk];
    std::array<const Compute*, kInputs> inputs;
    std::array<Compute*, kOutputs> outputs;
    for (int k = 0; k < kInputs; ++k) {
      Unit::template Widen<E>(args.inputs[k] + at, in[k], n);
      inputs[k] = in[k];
    }
    for (int k = 0; k < kOutputs; ++k) outputs[k] = out[k];
    Loop<by_column>(inputs, parameters, outputs, n);
    for (int k = 0; k < kOutputs; ++k) {
      Unit::template Narrow<E>(out[k], args.outputs[k] + at, n);
    }
  }

  // As Loop, past the caches; returns how many of n that did.
  template <bool by_column>
  static LOCKSTEP_SYNCBN_INLINE int64_t
  StreamLoop(const std::array<const Compute*, kInputs> inputs,
             const std::array<const Compute*, kParameters> parameters,
             const std::array<Compute*, kOutputs> outputs, int64_t n) {
    int64_t j = 0;
    for (; j + kStreamFloats <= n; j += kStreamFloats) {
      Compute out[kOutputs][kStreamFloats];
      for (int64_t i = j; i < j + kStreamFloats; ++i) {
        Compute in[kInputs];
        Compute parameter[kParameters];
        Compute result[kOutputs];
        for (int k = 0; k < kInputs; ++k) in[k] = inputs[k][i];
        for (int k = 0; k < kParameters; ++k) {
          parameter[k] = parameters[k][by_column ? i : 0];
        }
        Operation::Apply(in, parameter, result);
        for (int k = 0; k < kOutputs; ++k) out[k][i - j] = result[k];
      }
      for (int k = 0; k < kOutputs; ++k) StreamFloats(out[k], outputs[k] + j);
    }
    return j;
  }

  template <bool by_column>
  static LOCKSTEP_SYNCBN_INLINE void Loop(
      const std::array<const Compute*, kInputs> inputs,
      const std::array<const Compute*, kParameters> parameters,
      const std::array<Compute*, kOutputs> outputs, int64_t n) {
    std::array<Compute, kParameters> constant;
    for (int k = 0; k < kParameters; ++k) constant[k] = *parameters[k];
    LOCKSTEP_SYNCBN_SAME_OR_APART
    for (int64_t j = 0; j < n; ++j) {
      Compute in[kInputs];
      std::array<Compute, kParameters> parameter;
      Compute out[kOutputs];
      for (int k = 0; k < kInputs; ++k) in[k] = inputs[k][j];
      for (int k = 0; k < kParameters; ++k) {
        parameter[k] = by_column ? parameters[k][j] : constant[k];
      }
      Operation::Apply(in, parameter.data(), out);
      for (int k = 0; k < kOutputs; ++k) outputs[k][j] = out[k];
    }
  }
};

// Runs the operation over all runs, on the rank's threads.
template <typename E, typename Operation>
void RunElementwise(VectorUnit unit,
                    const ElementwiseArgs<E, Operation>& args) {
  ParallelFor(args.plan.runs, args.plan.size,
              [&](int64_t begin, int64_t end, int /*thread*/) {
                RunOn<ElementwiseLoop<E, Operation>>(unit, &args, begin, end);
              });
}

// max(0, value), but NaN stays NaN.
template <typename T>
LOCKSTEP_SYNCBN_INLINE T Relu(T value) {
  return value <= 0 ? T{0} : value;
}

// The gradient of what went into ReLU, from that of its output y.
template <typename T>
LOCKSTEP_SYNCBN_INLINE T ReluGradient(T y, T dy) {
  return y <= 0 ? T{0} : dy;
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_
