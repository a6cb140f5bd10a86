// The two passes over a tile, and the record that comes of them.
#include "syncbn/cpu/batch_moments.h"

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
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/column_scan.h"
#include "syncbn/cpu/parallel_for.h"
#include "syncbn/cpu/scratch.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/moments.h"

namespace lockstep {
namespace {

template <typename Compute, int64_t W>
struct MomentsTile {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Compute* const* inputs,
                                         int64_t stride, int64_t rows,
                                         const Compute* /*mean*/, double* mean,
                                         double* m2) {
    Compute pivot[W] = {};
    Sum(inputs[0], stride, rows, pivot);
    const Compute n = static_cast<Compute>(rows);
    for (int64_t j = 0; j < W; ++j) pivot[j] /= n;
    Compute sum[W] = {};
    Compute squares[W] = {};
    SumDeviations(inputs[0], stride, rows, pivot, sum, squares);
    for (int64_t j = 0; j < W; ++j) {
      const double s = sum[j];
      const double correction = s / static_cast<double>(rows);
      mean[j] = pivot[j] + correction;
      const double corrected = squares[j] - s * correction;
      m2[j] = corrected < 0 ? 0 : corrected;
    }
  }

 private:
  static LOCKSTEP_SYNCBN_INLINE void Sum(const Compute* x, int64_t stride,
                                         int64_t rows, Compute* sum) {
    // The same columns of the next tile.
    const int64_t ahead = kTileRows * stride * int64_t{sizeof(Compute)};
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const Compute* const a = x + r * stride;
      const Compute* const b = a + stride;
      const Compute* const c = b + stride;
      const Compute* const d = c + stride;
      for (const Compute* row : {a, b, c, d}) Prefetch<W>(row, ahead);
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) {
        sum[j] += (a[j] + b[j]) + (c[j] + d[j]);
      }
    }
    for (; r < rows; ++r) {
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) sum[j] += x[r * stride + j];
    }
  }

  static LOCKSTEP_SYNCBN_INLINE void SumDeviations(const Compute* x,
                                                   int64_t stride, int64_t rows,
                                                   const Compute* pivot,
                                                   Compute* sum,
                                                   Compute* squares) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const Compute* const a = x + r * stride;
      const Compute* const b = a + stride;
      const Compute* const c = b + stride;
      const Compute* const d = c + stride;
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) {
        const Compute p = a[j] - pivot[j];
        const Compute q = b[j] - pivot[j];
        const Compute s = c[j] - pivot[j];
        const Compute t = d[j] - pivot[j];
        sum[j] += (p + q) + (s + t);
        squares[j] += (p * p + q * q) + (s * s + t * t);
      }
    }
    for (; r < rows; ++r) {
      LOCKSTEP_SYNCBN_SAME_OR_APART
      for (int64_t j = 0; j < W; ++j) {
        const Compute p = x[r * stride + j] - pivot[j];
        sum[j] += p;
        squares[j] += p * p;
      }
    }
  }
};

template <typename E>
struct MomentsReduction {
  using Element = E;
  static constexpr int kInputs = 1;
  template <int64_t W>
  using Tile = MomentsTile<ComputeType<E>, W>;

  static LOCKSTEP_SYNCBN_INLINE void Merge(int64_t count, double& mean,
                                           double& m2, int64_t more,
                                           double more_mean, double more_m2) {
    const Moments<double> merged =
        MergeMoments<double>({count, mean, m2}, {more, more_mean, more_m2});
    mean = merged.mean;
    m2 = merged.m2;
  }
};

template <typename T>
void WriteRecord(const ColumnPlan& plan, const StatisticsRecord& layout,
                 int64_t count, const double* results, std::byte* record) {
  std::memset(record, 0, static_cast<size_t>(layout.size_bytes()));
  std::memcpy(record, &count, sizeof(count));
  T* const mean = reinterpret_cast<T*>(record + layout.mean_offset());
  T* const m2 = reinterpret_cast<T*>(record + layout.second_offset());
  for (int64_t i = 0; i < plan.series; ++i) {
    const double* const series = results + 2 * i * plan.segments * plan.period;
    for (int64_t j = 0; j < plan.period; ++j) {
      mean[i * plan.period + j] = static_cast<T>(series[j]);
      m2[i * plan.period + j] = static_cast<T>(series[plan.period + j]);
    }
  }
}

struct ComputeForType {
  template <typename E>
  static void Run(const ActivationShape& shape, const ConstBuffer& x,
                  VectorUnit unit, std::byte* memory, std::byte* record) {
    using Reduction = MomentsReduction<E>;
    ScanArgs<E, 1> args;
    args.plan = MakeColumnPlan(shape);
    args.inputs.shape = shape;
    args.inputs.data = {static_cast<const E*>(x.data)};
    args.results = reinterpret_cast<double*>(memory);
    args.columns = args.results + 2 * args.plan.items() * args.plan.period;
    ParallelFor(args.plan.items(), shape.size(),
                [&](int64_t begin, int64_t end, int thread) {
                  RunOn<ScanLoop<Reduction>>(unit, &args, begin, end,
                                             int64_t{thread});
                });
    RunOn<MergeSegmentsLoop<Reduction>>(unit, &args.plan, args.results);
    const StatisticsRecord layout = {.channels = shape.c,
                                     .type = StatisticsTypeOf(x.type)};
    WriteRecord<ComputeType<E>>(args.plan, layout, shape.values_per_channel(),
                                args.results, record);
  }
};

}  // namespace

absl::Status ComputeBatchMoments(const ActivationShape& shape, ConstBuffer x,
                                 VectorUnit unit, Scratch& scratch,
                                 std::byte* record) {
  const ColumnPlan plan = MakeColumnPlan(shape);
  const int64_t numbers =
      2 * (plan.items() * plan.period + MaxParallelThreads() * plan.columns());
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::byte* const memory,
      scratch.Reserve(numbers * static_cast<int64_t>(sizeof(double))));
  ForActivationType<ComputeForType>(x.type, shape, x, unit, memory, record);
  return absl::OkStatus();
}

}  // namespace lockstep
