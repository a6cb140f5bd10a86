// The sums over the batch.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/backward.h"
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/column_scan.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/parallel_for.h"
#include "syncbn/cpu/run_plan.h"
#include "syncbn/cpu/scratch.h"
#include "syncbn/cpu/vector_loops.h"

namespace lockstep {
namespace {

// Inputs x, dy, and y with ReLU; results sum of g, sum of g * (x - mean).
template <typename Compute, bool relu, int64_t W>
struct SumsTile {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Compute* const* tile,
                                         int64_t stride, int64_t rows,
                                         const Compute* mean, double* sums,
                                         double* products) {
    Compute sum[W] = {};
    Compute product[W] = {};
    int64_t r = 0;
    // The same columns of the next tile.
    const int64_t ahead = kTileRows * stride * int64_t{sizeof(Compute)};
    for (; r + 4 <= rows; r += 4) {
      for (int i = 0; i < (relu ? 3 : 2); ++i) {
        for (int64_t k = 0; k < 4; ++k) {
          Prefetch<W>(tile[i] + (r + k) * stride, ahead);
        }
      }
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) {
        const int64_t i = r * stride + j;
        const Compute a = Gradient(tile, i);
        const Compute b = Gradient(tile, i + stride);
        const Compute c = Gradient(tile, i + 2 * stride);
        const Compute d = Gradient(tile, i + 3 * stride);
        sum[j] += (a + b) + (c + d);
        product[j] +=
            (a * (tile[0][i] - mean[j]) + b * (tile[0][i + stride] - mean[j])) +
            (c * (tile[0][i + 2 * stride] - mean[j]) +
             d * (tile[0][i + 3 * stride] - mean[j]));
      }
    }
    for (; r < rows; ++r) {
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) {
        const int64_t i = r * stride + j;
        const Compute g = Gradient(tile, i);
        sum[j] += g;
        product[j] += g * (tile[0][i] - mean[j]);
      }
    }
    for (int64_t j = 0; j < W; ++j) {
      sums[j] = sum[j];
      products[j] = product[j];
    }
  }

 private:
  static LOCKSTEP_SYNCBN_INLINE Compute Gradient(const Compute* const* tile,
                                                 int64_t i) {
    if constexpr (relu) {
      return ReluGradient(tile[2][i], tile[1][i]);
    } else {
      return tile[1][i];
    }
  }
};

template <typename E, bool relu>
struct SumsReduction {
  using Element = E;
  static constexpr int kInputs = relu ? 3 : 2;
  template <int64_t W>
  using Tile = SumsTile<ComputeType<E>, relu, W>;

  static LOCKSTEP_SYNCBN_INLINE void Merge(int64_t /*count*/, double& sum,
                                           double& product, int64_t /*more*/,
                                           double more_sum,
                                           double more_product) {
    sum += more_sum;
    product += more_product;
  }
};

template <typename T>
void WriteSums(const ColumnPlan& plan, const double* results, const T* inverse,
               const Buffer& sums, const Buffer& dweight, const Buffer& dbias) {
  const int64_t channels = plan.series * plan.period;
  T* const sum = static_cast<T*>(sums.data);
  T* const product = sum + channels;
  for (int64_t i = 0; i < plan.series; ++i) {
    const double* const series = results + 2 * i * plan.segments * plan.period;
    for (int64_t j = 0; j < plan.period; ++j) {
      const int64_t channel = i * plan.period + j;
      sum[channel] = static_cast<T>(series[j]);
      product[channel] =
          static_cast<T>(series[plan.period + j] * double{inverse[channel]});
    }
  }
  if (dbias.count > 0) std::copy_n(sum, channels, static_cast<T*>(dbias.data));
  if (dweight.count > 0) {
    std::copy_n(product, channels, static_cast<T*>(dweight.data));
  }
}

// The mean of each column, with what the scan reads past the last one.
template <typename T>
const T* ColumnMeans(const ColumnPlan& plan, const T* mean, T* memory) {
  const int64_t channels = plan.series * plan.period;
  const int64_t size =
      plan.series == 1 ? plan.columns() + kColumnPadding : channels;
  std::copy_n(mean, channels, memory);
  RepeatChannels(channels, size, memory);
  return memory;
}

template <typename E, bool relu>
void RunReduction(const BatchNormKernels::BackwardCall& call,
                  const ColumnPlan& plan, const ComputeType<E>* mean,
                  double* memory, VectorUnit unit) {
  using Reduction = SumsReduction<E, relu>;
  ScanArgs<E, Reduction::kInputs> args;
  args.plan = plan;
  args.inputs.shape = call.shape;
  args.inputs.data[0] = static_cast<const E*>(call.x.data);
  args.inputs.data[1] = static_cast<const E*>(call.dy.data);
  if constexpr (relu) args.inputs.data[2] = static_cast<const E*>(call.y.data);
  args.mean = mean;
  args.results = memory;
  args.columns = memory + 2 * plan.items() * plan.period;
  ParallelFor(plan.items(), call.shape.size(),
              [&](int64_t begin, int64_t end, int thread) {
                RunOn<ScanLoop<Reduction>>(unit, &args, begin, end,
                                           int64_t{thread});
              });
  RunOn<MergeSegmentsLoop<Reduction>>(unit, &args.plan, args.results);
}

struct ReduceForType {
  template <typename E>
  static void Run(const BatchNormKernels::BackwardCall& call,
                  const ColumnPlan& plan, double* memory, std::byte* means,
                  const Buffer& sums, const Buffer& dweight,
                  const Buffer& dbias, VectorUnit unit) {
    using T = ComputeType<E>;
    const StatisticsRecord layout = {.channels = call.shape.c,
                                     .type = StatisticsTypeOf(call.x.type)};
    const T* const mean = ColumnMeans(
        plan, reinterpret_cast<const T*>(call.saved + layout.mean_offset()),
        reinterpret_cast<T*>(means));
    if (call.relu) {
      RunReduction<E, true>(call, plan, mean, memory, unit);
    } else {
      RunReduction<E, false>(call, plan, mean, memory, unit);
    }
    WriteSums(plan, memory,
              reinterpret_cast<const T*>(call.saved + layout.second_offset()),
              sums, dweight, dbias);
  }
};

}  // namespace

absl::Status ReduceBackward(const BatchNormKernels::BackwardCall& call,
                            const Buffer& sums, const Buffer& dweight,
                            const Buffer& dbias, VectorUnit unit,
                            Scratch& scratch) {
  const ColumnPlan plan = MakeColumnPlan(call.shape);
  const int64_t numbers =
      2 * (plan.items() * plan.period + MaxParallelThreads() * plan.columns());
  const int64_t means = std::max(plan.columns(), call.shape.c) + kColumnPadding;
  const int64_t size = sizeof(double);
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const memory,
                            scratch.Reserve((numbers + means) * size));
  ForActivationType<ReduceForType>(
      call.x.type, call, plan, reinterpret_cast<double*>(memory),
      memory + numbers * size, sums, dweight, dbias, unit);
  return absl::OkStatus();
}

}  // namespace lockstep
