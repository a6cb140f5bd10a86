#include "syncbn/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

// The number of values that loops process at once: a cache line of float32.
constexpr int64_t kWidth = 16;
static_assert(kWidth == kChannelBlock);

// An operation:
//
//   struct Operation {
//     static constexpr int kInputs, kParameters, kOutputs;
//     // T: the compute type, or a vector of it.
//     template <typename T>
//     static void Apply(const T* inputs, const T* parameters, T* outputs);
//   };
//
// Outputs may be inputs, but not one another.
template <typename E, typename Operation>
struct ElementwiseArgs {
  // memory: [kParameters, plan.parameters()]. offset: from the start of an
  // array to run 0.
  explicit ElementwiseArgs(const RunPlan& plan,
                           const ComputeType<E>* memory = nullptr,
                           int64_t offset = 0)
      : plan(plan), offset(offset) {
    for (auto& parameter : parameters) {
      parameter = memory;
      memory += plan.parameters();
    }
  }

  RunPlan plan;
  int64_t offset;
  std::array<const E*, Operation::kInputs> inputs;
  std::array<const ComputeType<E>*, Operation::kParameters> parameters;
  std::array<E*, Operation::kOutputs> outputs;

  // Returns whether to write past the caches, a cache line at a time. This is
  // so for outputs that are larger than a core's own caches, which would evict
  // them before their next use, and that are not inputs. With blocked channels
  // it is not so: their next reader gains more from a large third-level cache.
  bool Streams() const {
    constexpr int64_t kLargeBytes = int64_t{4} << 20;
    if (plan.kind == RunKind::kBlock || !std::is_same_v<E, float> ||
        !kCanStream || plan.run % kWidth != 0 ||
        plan.size * int64_t{sizeof(E)} < kLargeBytes) {
      return false;
    }
    for (const E* output : outputs) {
      const auto address = reinterpret_cast<uintptr_t>(output);
      if (address % (kWidth * sizeof(float)) != 0) return false;
      for (const E* input : inputs) {
        if (input == output) return false;
      }
    }
    return true;
  }
};

// Consecutive runs of n values. Each run has the parameters of the next of
// `channels` channels; rows of channels all have those of channel 0. For
// blocked channels n is a multiple of kWidth, and `ahead` is the distance of
// the values to prefetch.
struct Runs {
  int64_t n = 0;
  int64_t count = 1;
  int64_t channel = 0;  // The first run's.
  int64_t channels = 1;
  int64_t ahead = 0;
};

// Applies an operation to runs of the compute type. Each unit has one copy per
// operation and kind, which float32 and the 16-bit types share.
template <typename Compute, typename Operation, RunKind kind, bool streams>
struct RunLoop {
  static constexpr int kInputs = Operation::kInputs;
  static constexpr int kParameters = Operation::kParameters;
  static constexpr int kOutputs = Operation::kOutputs;
  using Inputs = std::array<const Compute*, kInputs>;
  using Parameters = std::array<const Compute*, kParameters>;
  using Outputs = std::array<Compute*, kOutputs>;

  // inputs, outputs: of the first run. parameters: of channel 0.
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Inputs* inputs,
                                         const Parameters* parameters,
                                         const Outputs* outputs,
                                         const Runs* runs) {
    const Parameters first = *parameters;
    Inputs in = *inputs;
    Outputs out = *outputs;
    const int64_t n = runs->n;
    const int64_t ahead = runs->ahead;
    const int64_t count = runs->count;
    const int64_t channels = runs->channels;
    int64_t channel = runs->channel;
    for (int64_t i = 0; i < count; ++i) {
      Parameters of_channel = first;
      for (auto& parameter : of_channel) parameter += channel;
      RunOne<Unit>(in, of_channel, out, n, ahead);
      for (auto& input : in) input += n;
      for (auto& output : out) output += n;
      if (++channel == channels) channel = 0;
    }
  }

 private:
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void RunOne(const Inputs& inputs,
                                            const Parameters& parameters,
                                            const Outputs& outputs, int64_t n,
                                            int64_t ahead) {
    using V = Vector<Unit, Compute>;
    constexpr int64_t kSize = kVectorSize<Unit, Compute>;
    constexpr int64_t kVectors = kWidth / kSize;
    V constants[kParameters + 1][kVectors];
    for (int k = 0; k < kParameters; ++k) {
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t first = kind == RunKind::kBlock ? v * kSize : 0;
        SetConstant<kSize>(parameters[k] + first, constants[k][v]);
      }
    }
    int64_t j = 0;
    for (; j + kWidth <= n; j += kWidth) {
      if constexpr (kind == RunKind::kBlock) {
        for (const Compute* input : inputs)
          Prefetch<kWidth>(input + j, ahead * int64_t{sizeof(Compute)});
        for (const Compute* output : outputs)
          PrefetchToWrite<kWidth>(output + j, ahead * int64_t{sizeof(Compute)});
      }
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t at = j + v * kSize;
        V in[kInputs];
        V parameter[kParameters + 1];
        V out[kOutputs];
        for (int k = 0; k < kInputs; ++k) {
          in[k] = VectorAt<V>(inputs[k] + at).values;
        }
        for (int k = 0; k < kParameters; ++k) {
          if constexpr (kind == RunKind::kColumn) {
            parameter[k] = VectorAt<V>(parameters[k] + at).values;
          } else {
            parameter[k] = constants[k][v];
          }
        }
        Operation::Apply(in, parameter, out);
        for (int k = 0; k < kOutputs; ++k) {
          if constexpr (streams) {
            Unit::Stream(out[k], outputs[k] + at);
          } else {
            VectorAt<V>(outputs[k] + at).values = out[k];
          }
        }
      }
    }
    if constexpr (kind != RunKind::kBlock) {
      for (; j < n; ++j) ApplyTo(inputs, parameters, outputs, j);
    }
  }

  // Sets the parameters of a vector, which do not change along the run.
  template <int64_t kSize, typename V>
  static LOCKSTEP_SYNCBN_INLINE void SetConstant(const Compute* parameters,
                                                 V& constant) {
    if constexpr (kind == RunKind::kPlane) {
      std::array<Compute, kSize> repeated;
      repeated.fill(*parameters);
      constant = VectorAt<V>(repeated.data()).values;
    } else if constexpr (kind == RunKind::kBlock) {
      constant = VectorAt<V>(parameters).values;
    }
  }

  // Applies the operation to element j of a run.
  static LOCKSTEP_SYNCBN_INLINE void ApplyTo(const Inputs& inputs,
                                             const Parameters& parameters,
                                             const Outputs& outputs,
                                             int64_t j) {
    Compute in[kInputs];
    Compute parameter[kParameters + 1];
    Compute out[kOutputs];
    for (int k = 0; k < kInputs; ++k) in[k] = inputs[k][j];
    for (int k = 0; k < kParameters; ++k) {
      parameter[k] = parameters[k][kind == RunKind::kColumn ? j : 0];
    }
    Operation::Apply(in, parameter, out);
    for (int k = 0; k < kOutputs; ++k) outputs[k][j] = out[k];
  }
};

template <typename E, typename Operation>
struct ElementwiseLoop {
  using Compute = ComputeType<E>;
  using Args = ElementwiseArgs<E, Operation>;
  static constexpr int kInputs = Operation::kInputs;
  static constexpr int kParameters = Operation::kParameters;
  static constexpr int kOutputs = Operation::kOutputs;
  // The values of a 16-bit type that are converted at a time. The arrays of a
  // chunk, at most five, stay in the first-level cache.
  static constexpr int64_t kChunk = 1024;
  // How many elements ahead the values of blocked channels are prefetched, in
  // their plane or at the start of the next one.
  static constexpr int64_t kPrefetchDistance = 512;
  // In elements: long enough for prefetchers, and small compared with a cache.
  static constexpr int64_t kBlock = 1 << 14;

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Args* args, int64_t begin,
                                         int64_t end) {
    // Goes block by block from the end. The previous reduction has read the
    // inputs from the start, so caches still hold their end.
    const int64_t block = std::max<int64_t>(1, kBlock / args->plan.run);
    const bool streams = args->Streams();
    for (; end > begin; end -= std::min(block, end - begin)) {
      const int64_t first = std::max(begin, end - block);
      RunBlock<Unit>(*args, first, end, std::max(begin, first - block),
                     streams);
    }
    if (streams) FinishStreaming();
  }

 private:
  using Inputs = std::array<const Compute*, kInputs>;
  using Parameters = std::array<const Compute*, kParameters>;
  using Outputs = std::array<Compute*, kOutputs>;

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void RunBlock(const Args& args, int64_t begin,
                                              int64_t end, int64_t then,
                                              bool streams) {
    const RunPlan& plan = args.plan;
    if (kParameters == 0 || plan.kind == RunKind::kColumn) {
      const int64_t whole = plan.size / plan.run;
      for (int64_t i = begin; i < end;) {
        Runs runs = {.n = plan.run, .count = std::min(end, whole) - i};
        if (i == whole) runs = {.n = plan.size - i * plan.run};
        Apply<Unit, RunKind::kColumn>(args, args.offset + i * plan.run, runs,
                                      streams);
        i += runs.count;
      }
    } else if constexpr (kParameters > 0) {
      if (plan.kind == RunKind::kPlane) {
        Apply<Unit, RunKind::kPlane>(args, args.offset + begin * plan.run,
                                     {.n = plan.run,
                                      .count = end - begin,
                                      .channel = begin % plan.channels,
                                      .channels = plan.channels},
                                     streams);
        return;
      }
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = PlaneAt(args, i);
        const int64_t next = PlaneAt(args, i + 1 < end ? i + 1 : then);
        RunPlane<Unit>(args, at, i / plan.samples * kChannelBlock, next - at);
      }
    }
  }

  // Returns the place of run i of blocked channels.
  static LOCKSTEP_SYNCBN_INLINE int64_t PlaneAt(const Args& args, int64_t i) {
    const RunPlan& plan = args.plan;
    const int64_t block = i / plan.samples;
    const int64_t sample = i - block * plan.samples;
    return args.offset + sample * plan.stride + block * plan.run;
  }

  // Applies the operation to one run of blocked channels. next: the distance of
  // the next run.
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void RunPlane(const Args& args, int64_t at,
                                              int64_t channel, int64_t next) {
    const int64_t n = args.plan.run;
    int64_t near = 0;
    if constexpr (std::is_same_v<E, Compute>) {
      near = std::max<int64_t>(0, n - kPrefetchDistance);
      if (near > 0) {
        Apply<Unit, RunKind::kBlock>(
            args, at,
            {.n = near, .channel = channel, .ahead = kPrefetchDistance});
      }
    }
    // The last elements prefetch the start of the next run.
    Apply<Unit, RunKind::kBlock>(
        args, at + near,
        {.n = n - near, .channel = channel, .ahead = next - near});
  }

  // Applies the operation to runs that begin at `at`.
  template <typename Unit, RunKind kind>
  static LOCKSTEP_SYNCBN_INLINE void Apply(const Args& args, int64_t at,
                                           const Runs& runs,
                                           bool streams = false) {
    if constexpr (!std::is_same_v<E, Compute>) {
      Unit::template Run<ChunkLoop>(&args, at, runs, kind);
    } else {
      Inputs inputs = args.inputs;
      Outputs outputs = args.outputs;
      for (auto& input : inputs) input += at;
      for (auto& output : outputs) output += at;
      if constexpr (std::is_same_v<E, float> && kind != RunKind::kBlock) {
        if (streams) {
          using Loop = RunLoop<Compute, Operation, kind, true>;
          Unit::template Run<Loop>(&inputs, &args.parameters, &outputs, &runs);
          return;
        }
      }
      using Loop = RunLoop<Compute, Operation, kind, false>;
      Unit::template Run<Loop>(&inputs, &args.parameters, &outputs, &runs);
    }
  }

  // Applies the operation to runs of a 16-bit type. Converts whole runs at a
  // time if they are short, otherwise a part of one run.
  struct ChunkLoop {
    template <typename Unit>
    static LOCKSTEP_SYNCBN_INLINE void Run(const Args* args, int64_t at,
                                           Runs runs, RunKind kind) {
      while (runs.count > 0) {
        Parameters parameters = args->parameters;
        Runs chunk = runs;
        chunk.count = std::clamp<int64_t>(kChunk / runs.n, 1, runs.count);
        for (int64_t i = 0; i < runs.n; i += kChunk) {
          chunk.n = std::min(kChunk, runs.n - i);
          ApplyToChunk<Unit>(*args, at + i, parameters, chunk, kind);
          if (kind != RunKind::kColumn) continue;
          for (auto& parameter : parameters) parameter += kChunk;
        }
        at += chunk.count * runs.n;
        runs.count -= chunk.count;
        runs.channel = (runs.channel + chunk.count) % runs.channels;
      }
    }
  };

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void ApplyToChunk(const Args& args, int64_t at,
                                                  const Parameters& parameters,
                                                  const Runs& runs,
                                                  RunKind kind) {
    alignas(64) Compute in[kInputs][kChunk];
    alignas(64) Compute out[kOutputs][kChunk];
    const int64_t n = runs.count * runs.n;
    Inputs inputs;
    Outputs outputs;
    for (int k = 0; k < kInputs; ++k) {
      Unit::template Run<WidenLoop<E>>(args.inputs[k] + at, &in[k][0], n);
      inputs[k] = in[k];
    }
    for (int k = 0; k < kOutputs; ++k) outputs[k] = out[k];
    const auto apply = [&]<RunKind k>() {
      using Loop = RunLoop<Compute, Operation, k, false>;
      Unit::template Run<Loop>(&inputs, &parameters, &outputs, &runs);
    };
    if (kParameters == 0 || kind == RunKind::kColumn) {
      apply.template operator()<RunKind::kColumn>();
    } else if constexpr (kParameters > 0) {
      if (kind == RunKind::kPlane) {
        apply.template operator()<RunKind::kPlane>();
      } else {
        apply.template operator()<RunKind::kBlock>();
      }
    }
    for (int k = 0; k < kOutputs; ++k) {
      Unit::template Run<NarrowLoop<E>>(&out[k][0], args.outputs[k] + at, n);
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

// The number of parameter arrays.
constexpr int kNormalizeArrays = 3;

// Inputs: x, and the residual if there is one. Parameters: mean, scale, bias.
// Output: y.
template <bool relu, bool residual>
struct NormalizeOperation {
  static constexpr int kInputs = residual ? 2 : 1;
  static constexpr int kParameters = kNormalizeArrays;
  static constexpr int kOutputs = 1;

  template <typename T>
  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T* parameters,
                                           T* outputs) {
    T y = (inputs[0] - parameters[0]) * parameters[1] + parameters[2];
    if constexpr (residual) y += inputs[1];
    if constexpr (relu) ApplyRelu(y);
    outputs[0] = y;
  }
};

// Returns the parameters from channel `first` on, or null if the layer has
// none.
template <typename T>
const T* ParametersFrom(const ConstBuffer& parameters, int64_t first) {
  if (parameters.count == 0) return nullptr;
  return static_cast<const T*>(parameters.data) + first;
}

// Fills memory [kNormalizeArrays, plan.parameters()]: mean, scale, bias.
template <typename T>
void MakeNormalizeParameters(const BatchNormKernels::NormalizeCall& call,
                             const RunPlan& plan, int64_t first, T* memory) {
  const StatisticsRecord layout = RecordOf(call.shape.c, call.x.type);
  const T* const saved_mean = layout.Mean<T>(call.saved.bytes()) + first;
  const T* const inverse = layout.Second<T>(call.saved.bytes()) + first;
  const T* const weight = ParametersFrom<T>(call.weight, first);
  const T* const saved_bias = ParametersFrom<T>(call.bias, first);
  const int64_t size = plan.parameters();
  T* const mean = memory;
  T* const scale = mean + size;
  T* const bias = scale + size;
  for (int64_t j = 0; j < plan.channels; ++j) {
    mean[j] = saved_mean[j];
    scale[j] = weight != nullptr ? inverse[j] * weight[j] : inverse[j];
    bias[j] = saved_bias != nullptr ? saved_bias[j] : T{0};
  }
  for (T* array : {mean, scale, bias}) {
    RepeatChannels(plan.channels, size, array);
  }
}

// The number of parameter arrays.
constexpr int kGradientArrays = 4;

// Inputs: dy, then y with ReLU, then x if the statistics are the batch's.
// Parameters: a, b, c and mean, as defined in the header. Outputs: dx, then g
// if it is wanted.
template <bool batch, bool relu, bool residual>
struct InputGradient {
  static constexpr int kInputs = 1 + relu + batch;
  static constexpr int kParameters = batch ? kGradientArrays : 1;
  static constexpr int kOutputs = 1 + residual;

  template <typename T>
  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T* parameters,
                                           T* outputs) {
    T g = inputs[0];
    if constexpr (relu) ApplyReluGradient(inputs[1], g);
    if constexpr (residual) outputs[1] = g;
    if constexpr (batch) {
      g = (g - parameters[1]) -
          (inputs[1 + relu] - parameters[3]) * parameters[2];
    }
    outputs[0] = parameters[0] * g;
  }
};

// Fills memory [kGradientArrays, plan.parameters()]: a, b, c, mean.
template <typename T>
void MakeGradientParameters(const BatchNormKernels::BackwardCall& call,
                            const RunPlan& plan, int64_t first, int64_t count,
                            T* memory) {
  const StatisticsRecord layout = RecordOf(call.shape.c, call.x.type);
  const T* const saved_mean = layout.Mean<T>(call.saved.bytes()) + first;
  const T* const inverse = layout.Second<T>(call.saved.bytes()) + first;
  const T* const weight = ParametersFrom<T>(call.weight, first);
  const int64_t size = plan.parameters();
  for (int64_t j = 0; j < plan.channels; ++j) {
    memory[j] = weight != nullptr ? inverse[j] * weight[j] : inverse[j];
  }
  if (count > 0) {
    const T* const sum = static_cast<const T*>(call.sums.data) + first;
    const T* const products = sum + call.shape.c;
    const double n = static_cast<double>(count);
    for (int64_t j = 0; j < plan.channels; ++j) {
      const double product = products[j];
      memory[size + j] = static_cast<T>(double{sum[j]} / n);
      memory[2 * size + j] = static_cast<T>(product / n * double{inverse[j]});
      memory[3 * size + j] = saved_mean[j];
    }
  }
  for (int k = 0; k < (count > 0 ? kGradientArrays : 1); ++k) {
    RepeatChannels(plan.channels, size, memory + k * size);
  }
}

// The number of values in a run whose operation has no parameters.
constexpr int64_t kRun = 4096;

RunPlan FlatPlan(int64_t size) {
  RunPlan plan;
  plan.kind = RunKind::kColumn;
  plan.run = kRun;
  plan.runs = (size + kRun - 1) / kRun;
  plan.size = size;
  return plan;
}

template <bool add, bool relu>
struct AddReluOperation {
  static constexpr int kInputs = 1 + add;
  static constexpr int kParameters = 0;
  static constexpr int kOutputs = 1;

  template <typename T>
  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T*,
                                           T* outputs) {
    T y = inputs[0];
    if constexpr (add) y += inputs[1];
    if constexpr (relu) ApplyRelu(y);
    outputs[0] = y;
  }
};

struct MaskOperation {
  static constexpr int kInputs = 2;
  static constexpr int kParameters = 0;
  static constexpr int kOutputs = 1;

  template <typename T>
  static LOCKSTEP_SYNCBN_INLINE void Apply(const T* inputs, const T*,
                                           T* outputs) {
    outputs[0] = inputs[1];
    ApplyReluGradient(inputs[0], outputs[0]);
  }
};

}  // namespace

absl::Status NormalizeChannels(const BatchNormKernels::NormalizeCall& call,
                               ChannelRange range, VectorUnit unit,
                               Scratch& scratch) {
  const RunPlan plan = MakeRunPlan(call.shape, range);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(kNormalizeArrays * plan.parameters() *
                      SizeOf(StatisticsTypeOf(call.x.type))));
  ForActivationType(call.x.type, [&]<typename E>(E) {
    auto* const parameters = reinterpret_cast<ComputeType<E>*>(memory);
    MakeNormalizeParameters(call, plan, range.begin, parameters);
    ForFlags(
        [&](auto relu, auto residual) {
          using Operation = NormalizeOperation<relu(), residual()>;
          ElementwiseArgs<E, Operation> args(plan, parameters,
                                             range.offset(call.shape));
          args.inputs[0] = static_cast<const E*>(call.x.data);
          if constexpr (residual()) {
            args.inputs[1] = static_cast<const E*>(call.residual.data);
          }
          args.outputs = {static_cast<E*>(call.y.data)};
          RunElementwise(unit, args);
        },
        call.relu, call.residual.count > 0);
  });
  return absl::OkStatus();
}

absl::Status InputGradientOfChannels(const BatchNormKernels::BackwardCall& call,
                                     ChannelRange range, VectorUnit unit,
                                     Scratch& scratch) {
  const RunPlan plan = MakeRunPlan(call.shape, range);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(kGradientArrays * plan.parameters() *
                      SizeOf(StatisticsTypeOf(call.x.type))));
  const int64_t count = StatisticsRecord::Count(call.saved.bytes());
  ForActivationType(call.x.type, [&]<typename E>(E) {
    auto* const parameters = reinterpret_cast<ComputeType<E>*>(memory);
    MakeGradientParameters(call, plan, range.begin, count, parameters);
    ForFlags(
        [&](auto batch, auto relu, auto residual) {
          using Operation = InputGradient<batch(), relu(), residual()>;
          ElementwiseArgs<E, Operation> args(plan, parameters,
                                             range.offset(call.shape));
          args.inputs[0] = static_cast<const E*>(call.dy.data);
          if constexpr (relu()) {
            args.inputs[1] = static_cast<const E*>(call.y.data);
          }
          if constexpr (batch()) {
            args.inputs[1 + relu()] = static_cast<const E*>(call.x.data);
          }
          args.outputs[0] = static_cast<E*>(call.dx.data);
          if constexpr (residual()) {
            args.outputs[1] = static_cast<E*>(call.dresidual.data);
          }
          RunElementwise(unit, args);
        },
        count > 0, call.relu, call.dresidual.count > 0);
  });
  return absl::OkStatus();
}

void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y) {
  ForActivationType(y.type, [&]<typename E>(E) {
    ForFlags(
        [&](auto adds, auto relus) {
          if constexpr (adds() || relus()) {
            ElementwiseArgs<E, AddReluOperation<adds(), relus()>> args(
                FlatPlan(y.count));
            args.inputs[0] = static_cast<const E*>(normal.data);
            if constexpr (adds()) {
              args.inputs[1] = static_cast<const E*>(residual.data);
            }
            args.outputs[0] = static_cast<E*>(y.data);
            RunElementwise(BestVectorUnit(), args);
          }
        },
        residual.count > 0, relu);
  });
}

void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g) {
  ForActivationType(g.type, [&]<typename E>(E) {
    ElementwiseArgs<E, MaskOperation> args(FlatPlan(y.count));
    args.inputs = {static_cast<const E*>(y.data),
                   static_cast<const E*>(dy.data)};
    args.outputs = {static_cast<E*>(g.data)};
    RunElementwise(BestVectorUnit(), args);
  });
}

}  // namespace lockstep
