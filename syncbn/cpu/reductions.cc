#include "syncbn/cpu/reductions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/column_scan.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

// Returns how many float64 numbers RunScan needs.
int64_t ScanNumbers(const ColumnPlan& plan) {
  return 2 *
         (plan.items() * plan.period + MaxParallelThreads() * plan.columns());
}

// Reduces args.inputs to args.results, in `memory` [ScanNumbers].
template <typename Reduction, typename Args>
void RunScan(Args& args, double* memory, VectorUnit unit) {
  args.results = memory;
  args.columns = memory + 2 * args.plan.items() * args.plan.period;
  ParallelFor(args.plan.items(), args.plan.size(),
              [&](int64_t begin, int64_t end, int thread) {
                RunOn<ScanLoop<Reduction>>(unit, &args, begin, end,
                                           int64_t{thread});
              });
  RunOn<MergeSegmentsLoop<Reduction>>(unit, &args.plan, args.results);
}

// The W columns of a tile, in vectors of the unit.
template <typename Unit, typename Compute, int64_t W>
struct Columns {
  using Values = Vector<Unit, Compute>;
  static constexpr int64_t kSize = kVectorSize<Unit, Compute>;
  static constexpr int64_t kCount = W / kSize;

  LOCKSTEP_SYNCBN_INLINE std::array<Compute, W> ToArray() const {
    std::array<Compute, W> array;
    std::memcpy(array.data(), vectors, sizeof(array));
    return array;
  }

  Values vectors[kCount] = {};
};

// Computes the moments of a tile in two passes.
template <typename Compute, int64_t W>
struct MomentsTile {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Compute* const* inputs,
                                         const TileView* view,
                                         const Compute* /*mean*/, double* mean,
                                         double* m2, Compute* /*written*/) {
    const int64_t rows = view->strips * view->rows;
    // The loops over a shorter tile do not prefetch these rows.
    for (int64_t r = view->rows; r < view->next_rows; ++r) {
      Prefetch<W>(inputs[0] + r * view->stride,
                  view->ahead * int64_t{sizeof(Compute)});
    }
    Columns<Unit, Compute, W> pivot;
    for (int64_t i = 0; i < view->strips; ++i) {
      Sum(inputs[0] + i * view->strip_stride, *view, pivot);
    }
    for (auto& values : pivot.vectors) values /= static_cast<Compute>(rows);
    Columns<Unit, Compute, W> sum;
    Columns<Unit, Compute, W> squares;
    for (int64_t i = 0; i < view->strips; ++i) {
      SumDeviations(inputs[0] + i * view->strip_stride, *view, pivot, sum,
                    squares);
    }
    Correct(pivot.ToArray(), sum.ToArray(), squares.ToArray(),
            static_cast<double>(rows), mean, m2);
  }

 private:
  using Array = std::array<Compute, W>;

  static LOCKSTEP_SYNCBN_INLINE void Correct(const Array& pivot,
                                             const Array& sum,
                                             const Array& squares, double rows,
                                             double* mean, double* m2) {
    LOCKSTEP_SYNCBN_SAME_OR_APART
    for (size_t j = 0; j < size_t{W}; ++j) {
      const double s = sum[j];
      const double correction = s / rows;
      mean[j] = pivot[j] + correction;
      const double corrected = squares[j] - s * correction;
      m2[j] = corrected < 0 ? 0 : corrected;
    }
  }

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Sum(const Compute* x, const TileView& view,
                                         Columns<Unit, Compute, W>& sum) {
    using C = Columns<Unit, Compute, W>;
    using V = typename C::Values;
    const int64_t stride = view.stride;
    const int64_t ahead = view.ahead * int64_t{sizeof(Compute)};
    int64_t r = 0;
    for (; r + 4 <= view.rows; r += 4) {
      const Compute* const row = x + r * stride;
      for (int64_t i = 0; i < 4; ++i) Prefetch<W>(row + i * stride, ahead);
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        const Compute* const at = row + k * C::kSize;
        sum.vectors[k] +=
            (VectorAt<V>(at).values + VectorAt<V>(at + stride).values) +
            (VectorAt<V>(at + 2 * stride).values +
             VectorAt<V>(at + 3 * stride).values);
      }
    }
    for (; r < view.rows; ++r) {
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        sum.vectors[k] += VectorAt<V>(x + r * stride + k * C::kSize).values;
      }
    }
  }

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void SumDeviations(
      const Compute* x, const TileView& view,
      const Columns<Unit, Compute, W>& pivot, Columns<Unit, Compute, W>& sum,
      Columns<Unit, Compute, W>& squares) {
    using C = Columns<Unit, Compute, W>;
    using V = typename C::Values;
    const int64_t stride = view.stride;
    int64_t r = 0;
    for (; r + 4 <= view.rows; r += 4) {
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        const Compute* const at = x + r * stride + k * C::kSize;
        const V center = pivot.vectors[k];
        const V p = VectorAt<V>(at).values - center;
        const V q = VectorAt<V>(at + stride).values - center;
        const V s = VectorAt<V>(at + 2 * stride).values - center;
        const V t = VectorAt<V>(at + 3 * stride).values - center;
        sum.vectors[k] += (p + q) + (s + t);
        squares.vectors[k] += (p * p + q * q) + (s * s + t * t);
      }
    }
    for (; r < view.rows; ++r) {
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        const V p = VectorAt<V>(x + r * stride + k * C::kSize).values -
                    pivot.vectors[k];
        sum.vectors[k] += p;
        squares.vectors[k] += p * p;
      }
    }
  }
};

struct MomentsMerger {
  static constexpr bool kSimple = false;

  static LOCKSTEP_SYNCBN_INLINE void Merge(int64_t count, double& mean,
                                           double& m2, int64_t more,
                                           double more_mean, double more_m2) {
    const Moments<double> merged =
        MergeMoments<double>({count, mean, m2}, {more, more_mean, more_m2});
    mean = merged.mean;
    m2 = merged.m2;
  }
};

template <typename E>
struct MomentsReduction {
  using Element = E;
  using Merger = MomentsMerger;
  static constexpr int kInputs = 1;
  template <int64_t W>
  using Tile = MomentsTile<ComputeType<E>, W>;
};

// Writes the channels from `first_channel` on. The first call starts the
// record.
template <typename T>
void WriteRecord(const ColumnPlan& plan, const StatisticsRecord& layout,
                 int64_t first_channel, int64_t count, const double* results,
                 std::byte* record) {
  if (first_channel == 0) layout.Start(record, count);
  T* const mean = layout.Mean<T>(record) + first_channel;
  T* const m2 = layout.Second<T>(record) + first_channel;
  for (int64_t i = 0; i < plan.series; ++i) {
    const double* const series = results + 2 * i * plan.segments * plan.period;
    for (int64_t j = 0; j < plan.period; ++j) {
      mean[i * plan.period + j] = static_cast<T>(series[j]);
      m2[i * plan.period + j] = static_cast<T>(series[plan.period + j]);
    }
  }
}

// Inputs: x, dy, and y with ReLU. Results: sum of g, sum of g * (x - mean).
template <typename Compute, bool relu, int64_t W>
struct SumsTile {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Compute* const* inputs,
                                         const TileView* view,
                                         const Compute* mean, double* sums,
                                         double* products, Compute* written) {
    Columns<Unit, Compute, W> sum;
    Columns<Unit, Compute, W> product;
    for (int64_t i = 0; i < view->strips; ++i) {
      const Compute* strip[kInputs];
      for (int k = 0; k < kInputs; ++k) {
        strip[k] = inputs[k] + i * view->strip_stride;
      }
      if constexpr (relu && W == kChannelBlock) {
        if (written != nullptr) {
          AddStrip<true>(strip, *view, mean, sum, product,
                         written + i * view->strip_stride);
          continue;
        }
      }
      AddStrip<false>(strip, *view, mean, sum, product, written);
    }
    const std::array<Compute, W> of_g = sum.ToArray();
    const std::array<Compute, W> of_gx = product.ToArray();
    for (size_t j = 0; j < size_t{W}; ++j) {
      sums[j] = of_g[j];
      products[j] = of_gx[j];
    }
  }

 private:
  static constexpr int kInputs = relu ? 3 : 2;

  template <bool writes, typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void AddStrip(
      const Compute* const* tile, const TileView& view, const Compute* mean,
      Columns<Unit, Compute, W>& sum, Columns<Unit, Compute, W>& product,
      Compute* written) {
    using C = Columns<Unit, Compute, W>;
    using V = typename C::Values;
    const int64_t stride = view.stride;
    const int64_t ahead = view.ahead * int64_t{sizeof(Compute)};
    int64_t r = 0;
    for (; r + 4 <= view.rows; r += 4) {
      for (int i = 0; i < kInputs; ++i) {
        for (int64_t k = 0; k < 4; ++k) {
          Prefetch<W>(tile[i] + (r + k) * stride, ahead);
        }
      }
      if constexpr (writes) {
        for (int64_t k = 0; k < 4; ++k) {
          PrefetchToWrite<W>(written + (r + k) * stride, ahead);
        }
      }
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        const int64_t at = r * stride + k * C::kSize;
        const V center = VectorAt<V>(mean + k * C::kSize).values;
        V a, b, c, d;
        SetGradient(tile, at, a);
        SetGradient(tile, at + stride, b);
        SetGradient(tile, at + 2 * stride, c);
        SetGradient(tile, at + 3 * stride, d);
        sum.vectors[k] += (a + b) + (c + d);
        if constexpr (writes) {
          VectorAt<V>(written + at).values = a;
          VectorAt<V>(written + at + stride).values = b;
          VectorAt<V>(written + at + 2 * stride).values = c;
          VectorAt<V>(written + at + 3 * stride).values = d;
        }
        const Compute* const x = tile[0] + at;
        product.vectors[k] +=
            (a * (VectorAt<V>(x).values - center) +
             b * (VectorAt<V>(x + stride).values - center)) +
            (c * (VectorAt<V>(x + 2 * stride).values - center) +
             d * (VectorAt<V>(x + 3 * stride).values - center));
      }
    }
    for (; r < view.rows; ++r) {
      LOCKSTEP_SYNCBN_UNROLL
      for (int64_t k = 0; k < C::kCount; ++k) {
        const int64_t at = r * stride + k * C::kSize;
        V g;
        SetGradient(tile, at, g);
        sum.vectors[k] += g;
        if constexpr (writes) VectorAt<V>(written + at).values = g;
        product.vectors[k] += g * (VectorAt<V>(tile[0] + at).values -
                                   VectorAt<V>(mean + k * C::kSize).values);
      }
    }
  }

  template <typename V>
  static LOCKSTEP_SYNCBN_INLINE void SetGradient(const Compute* const* tile,
                                                 int64_t at, V& g) {
    g = VectorAt<V>(tile[1] + at).values;
    if constexpr (relu) {
      const V y = VectorAt<V>(tile[2] + at).values;
      ApplyReluGradient(y, g);
    }
  }
};

struct SumsMerger {
  static constexpr bool kSimple = true;

  static LOCKSTEP_SYNCBN_INLINE void Merge(int64_t /*count*/, double& sum,
                                           double& product, int64_t /*more*/,
                                           double more_sum,
                                           double more_product) {
    sum += more_sum;
    product += more_product;
  }
};

template <typename E, bool relu>
struct SumsReduction {
  using Element = E;
  using Merger = SumsMerger;
  static constexpr int kInputs = relu ? 3 : 2;
  template <int64_t W>
  using Tile = SumsTile<ComputeType<E>, relu, W>;
};

// inverse: the inverse deviations of the range's channels.
template <typename T>
void WriteSums(const ColumnPlan& plan, const double* results, const T* inverse,
               const BatchNormKernels::BackwardCall& call, ChannelRange range) {
  T* const sum = static_cast<T*>(call.sums.data) + range.begin;
  T* const product = sum + call.shape.c;
  for (int64_t i = 0; i < plan.series; ++i) {
    const double* const series = results + 2 * i * plan.segments * plan.period;
    for (int64_t j = 0; j < plan.period; ++j) {
      const int64_t channel = i * plan.period + j;
      sum[channel] = static_cast<T>(series[j]);
      product[channel] =
          static_cast<T>(series[plan.period + j] * double{inverse[channel]});
    }
  }
  if (call.dbias.count > 0) {
    std::copy_n(sum, range.size,
                static_cast<T*>(call.dbias.data) + range.begin);
  }
  if (call.dweight.count > 0) {
    std::copy_n(product, range.size,
                static_cast<T*>(call.dweight.data) + range.begin);
  }
}

// Returns the mean of each column, and the values that the scan reads past the
// last column.
template <typename T>
const T* ColumnMeans(const ColumnPlan& plan, const T* mean, T* memory) {
  const int64_t channels = plan.series * plan.period;
  const int64_t size =
      plan.series == 1 ? plan.columns() + kColumnPadding : channels;
  std::copy_n(mean, channels, memory);
  RepeatChannels(channels, size, memory);
  return memory;
}

// Merging is in float64, for some channels at a time. A rank has the same count
// for all channels, so each merge divides only once.
constexpr int64_t kChunk = 64;

struct Chunk {
  double mean[kChunk] = {};
  double m2[kChunk] = {};
  int64_t count = 0;
};

// Merges the ranks' channels [begin, begin + size), in rank order.
template <typename T>
Chunk MergeChunk(const StatisticsRecord& record, const std::byte* gathered,
                 int ranks, int64_t begin, int64_t size) {
  Chunk chunk;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::byte* const more = gathered + rank * record.size_bytes();
    const int64_t count = StatisticsRecord::Count(more);
    const T* const mean = record.Mean<T>(more) + begin;
    const T* const m2 = record.Second<T>(more) + begin;
    for (int64_t j = 0; j < size; ++j) {
      const Moments<double> merged = MergeMoments<double>(
          {chunk.count, chunk.mean[j], chunk.m2[j]}, {count, mean[j], m2[j]});
      chunk.mean[j] = merged.mean;
      chunk.m2[j] = merged.m2;
    }
    chunk.count += count;
  }
  return chunk;
}

template <typename T>
void UpdateRunning(const Chunk& chunk, const MergeOptions& options,
                   const RunningStatistics& running, int64_t begin,
                   int64_t size) {
  T* const mean = static_cast<T*>(running.mean.data) + begin;
  T* const variance = static_cast<T*>(running.variance.data) + begin;
  const double weight = options.weight_of_batch;
  for (int64_t j = 0; j < size; ++j) {
    const Moments<double> moments = {chunk.count, chunk.mean[j], chunk.m2[j]};
    const double batch_variance = options.unbiased_running_variance
                                      ? UnbiasedVariance(moments)
                                      : BiasedVariance(moments);
    mean[j] =
        static_cast<T>((1 - weight) * double{mean[j]} + weight * moments.mean);
    variance[j] = static_cast<T>((1 - weight) * double{variance[j]} +
                                 weight * batch_variance);
  }
}

template <typename T>
void MergeOf(const BatchNormKernels::MergeCall& call, ChannelRange range) {
  const StatisticsRecord& record = call.record;
  T* const mean = record.Mean<T>(call.saved);
  T* const inverse = record.Second<T>(call.saved);
  const int64_t end = range.begin + range.size;
  for (int64_t begin = range.begin; begin < end; begin += kChunk) {
    const int64_t size = std::min(kChunk, end - begin);
    const Chunk chunk =
        MergeChunk<T>(record, call.gathered, call.ranks, begin, size);
    const double n = static_cast<double>(std::max<int64_t>(chunk.count, 1));
    for (int64_t j = 0; j < size; ++j) {
      mean[begin + j] = static_cast<T>(chunk.mean[j]);
      inverse[begin + j] = static_cast<T>(
          InverseDeviation(chunk.m2[j] / n, call.options.epsilon));
    }
    const bool refused = chunk.count == 1 && call.options.refuses_one_value;
    if (call.running.tracked() && chunk.count > 0 && !refused) {
      UpdateRunning<T>(chunk, call.options, call.running, begin, size);
    }
  }
}

template <typename T>
void CopyRunning(const BatchNormKernels::RunningCall& call) {
  const int64_t channels = call.record.channels;
  T* const inverse = call.record.Second<T>(call.saved);
  const T* const variance = static_cast<const T*>(call.running.variance.data);
  std::copy_n(static_cast<const T*>(call.running.mean.data), channels,
              call.record.Mean<T>(call.saved));
  for (int64_t j = 0; j < channels; ++j) {
    inverse[j] =
        static_cast<T>(InverseDeviation(double{variance[j]}, call.epsilon));
  }
}

}  // namespace

absl::Status ReduceMoments(const ActivationShape& shape, ConstBuffer x,
                           std::byte* record, ChannelRange range,
                           VectorUnit unit, Scratch& scratch) {
  const ColumnPlan plan = MakeColumnPlan(shape, range);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(ScanNumbers(plan) * int64_t{sizeof(double)}));
  ForActivationType(x.type, [&]<typename E>(E) {
    ScanArgs<E, 1> args;
    args.plan = plan;
    args.inputs.shape = shape;
    args.inputs.data = {static_cast<const E*>(x.data) + range.offset(shape)};
    RunScan<MomentsReduction<E>>(args, reinterpret_cast<double*>(memory), unit);
    WriteRecord<ComputeType<E>>(plan, RecordOf(shape.c, x.type), range.begin,
                                shape.values_per_channel(), args.results,
                                record);
  });
  return absl::OkStatus();
}

absl::Status ReduceGradients(const BatchNormKernels::BackwardCall& call,
                             ChannelRange range, const Buffer& gradient,
                             VectorUnit unit, Scratch& scratch) {
  const ColumnPlan plan = MakeColumnPlan(call.shape, range);
  const int64_t numbers = ScanNumbers(plan);
  const int64_t means = std::max(plan.columns(), call.shape.c) + kColumnPadding;
  const int64_t size = sizeof(double);
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            scratch.Reserve((numbers + means) * size));
  auto* const results = reinterpret_cast<double*>(memory);
  const StatisticsRecord layout = RecordOf(call.shape.c, call.x.type);
  ForActivationType(call.x.type, [&]<typename E>(E) {
    using T = ComputeType<E>;
    const T* const mean =
        ColumnMeans(plan, layout.Mean<T>(call.saved.bytes()) + range.begin,
                    reinterpret_cast<T*>(memory + numbers * size));
    ForFlags(
        [&](auto relu) {
          using Reduction = SumsReduction<E, relu()>;
          ScanArgs<E, Reduction::kInputs> args;
          args.plan = plan;
          args.inputs.shape = call.shape;
          args.inputs.data[0] = static_cast<const E*>(call.x.data);
          args.inputs.data[1] = static_cast<const E*>(call.dy.data);
          if constexpr (relu()) {
            args.inputs.data[2] = static_cast<const E*>(call.y.data);
          }
          for (auto& data : args.inputs.data) data += range.offset(call.shape);
          args.mean = mean;
          if (gradient.count > 0) {
            args.written =
                static_cast<T*>(gradient.data) + range.offset(call.shape);
          }
          RunScan<Reduction>(args, results, unit);
        },
        call.relu);
    WriteSums(plan, results, layout.Second<T>(call.saved.bytes()) + range.begin,
              call, range);
  });
  return absl::OkStatus();
}

void MergeRecords(const BatchNormKernels::MergeCall& call, ChannelRange range) {
  int64_t count = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    count += StatisticsRecord::Count(call.gathered +
                                     rank * call.record.size_bytes());
  }
  if (range.begin == 0) call.record.Start(call.saved, count);
  if (call.record.type == DataType::kFloat64) {
    MergeOf<double>(call, range);
  } else {
    MergeOf<float>(call, range);
  }
}

void CopyRunningStatistics(const BatchNormKernels::RunningCall& call) {
  call.record.Start(call.saved, /*count=*/0);
  if (call.record.type == DataType::kFloat64) {
    CopyRunning<double>(call);
  } else {
    CopyRunning<float>(call);
  }
}

}  // namespace lockstep
