// Reduces activations to two float64 numbers per channel, in an order that
// depends only on their shape (workspace.h). Statistics and gradient sums share
// this code. For files that are compiled with -ffp-contract=off.
#ifndef LOCKSTEP_SYNCBN_CPU_COLUMN_SCAN_H_
#define LOCKSTEP_SYNCBN_CPU_COLUMN_SCAN_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "syncbn/batch_norm.h"
#include "syncbn/cpu/vector_loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// Arrays of one shape.
template <typename E, int kInputs>
struct ScanInputs {
  ActivationShape shape;
  std::array<const E*, kInputs> data;
};

// A tile in memory: `strips` strips of `rows` rows. Each row starts `stride`
// values after the one before. The next tile starts `ahead` values after this
// one. If both are parts of planes, the next tile has `next_rows` rows.
struct TileView {
  int64_t stride;
  int64_t rows;
  int64_t ahead;
  int64_t next_rows = 0;
  int64_t strips = 1;
  int64_t strip_stride = 0;
};

// The rows of a series. Each row starts `stride` values after the one before.
struct ScanRegion {
  int64_t start;  // Values of the series before the region.
  int64_t stride;
  int64_t rows;
  int64_t columns;
};

// Copies `width` values of each row to rows of W, whose end it fills with 0.
template <typename E, int64_t W>
struct CopyRowsLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const E* from, int64_t stride,
                                         int64_t rows, int64_t width,
                                         ComputeType<E>* to) {
    if (width == W) {
      for (int64_t r = 0; r < rows; ++r) {
        Unit::template Widen<E>(from + r * stride, to + r * W, W);
      }
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      Unit::template Widen<E>(from + r * stride, to + r * W, width);
      std::fill_n(to + r * W + width, W - width, ComputeType<E>{0});
    }
  }
};

// Copies `count` values of planes of `hw` values, from value `in_plane` of the
// first plane on. Each plane starts `stride` values after the one before.
template <typename E>
struct CopyPlanesLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const E* plane, int64_t hw,
                                         int64_t stride, int64_t in_plane,
                                         int64_t count, ComputeType<E>* to) {
    while (count > 0) {
      const int64_t run = std::min(count, hw - in_plane);
      Unit::template Widen<E>(plane + in_plane, to, run);
      to += run;
      count -= run;
      plane += stride;
      in_plane = 0;
    }
  }
};

// Gives tiles as arrays of the compute type: at their own place in memory if
// possible, otherwise as a copy that stays in the cache.
template <typename TileUnit, typename E, int kInputs>
class TileLoader {
 public:
  using Unit = TileUnit;
  using Compute = ComputeType<E>;
  using Tile = std::array<const Compute*, kInputs>;

  LOCKSTEP_SYNCBN_INLINE TileLoader(const ScanInputs<E, kInputs>& inputs,
                                    int64_t series)
      : inputs_(inputs), series_(series) {}

  // Points `tile` at rows [row, row + rows), columns [column, column + width)
  // of the region; returns the stride. Columns beyond `width`, up to W, are
  // zero. Not for blocked channels.
  template <int64_t W>
  LOCKSTEP_SYNCBN_INLINE int64_t Load(const ScanRegion& region, int64_t row,
                                      int64_t rows, int64_t column,
                                      int64_t width, Tile& tile) {
    const int64_t at = region.start + row * region.stride + column;
    if (IsChannelsLast(inputs_.shape)) {
      if constexpr (std::is_same_v<E, Compute>) {
        if (width == W) {
          for (int k = 0; k < kInputs; ++k) tile[k] = inputs_.data[k] + at;
          return region.stride;
        }
      }
      for (int k = 0; k < kInputs; ++k) {
        Unit::template Run<CopyRowsLoop<E, W>>(
            inputs_.data[k] + at, region.stride, rows, width, &copy_[k][0]);
        tile[k] = copy_[k];
      }
      return W;
    }
    if (width == W) {
      return LoadSeries(at, rows * W, tile);
    }
    for (int k = 0; k < kInputs; ++k) {
      std::fill_n(copy_[k], rows * W, Compute{0});
      for (int64_t r = 0; r < rows; ++r) {
        CopySeries(inputs_.data[k], at + r * region.stride, width,
                   copy_[k] + r * W);
      }
      tile[k] = copy_[k];
    }
    return W;
  }

  // Points `tile` at the tile of blocked channels whose first row is `begin`: a
  // part of a plane, or whole planes. `end` is the row after its last one, and
  // so the first row of the next tile. `next_end` is the end of that next tile.
  LOCKSTEP_SYNCBN_INLINE TileView LoadPlanes(int64_t begin, int64_t end,
                                             int64_t next_end, Tile& tile) {
    constexpr int64_t kWidth = kChannelBlock;
    const int64_t hw = inputs_.shape.hw;
    const int64_t stride = inputs_.shape.c * hw;  // From plane to plane.
    const int64_t sample = begin / hw;
    const int64_t at = RowAt(sample, begin - sample * hw);
    const int64_t next = end / hw;
    TileView view = {.stride = kWidth,
                     .rows = std::min(end - begin, hw),
                     .ahead = RowAt(next, end - next * hw) - at,
                     .next_rows = std::min(next_end - end, hw),
                     .strips = std::max<int64_t>(1, (end - begin) / hw),
                     .strip_stride = stride};
    // Strips of whole groups of four rows are summed as if they were one.
    if (std::is_same_v<E, Compute> && TilesLieInPlace(inputs_.shape)) {
      for (int k = 0; k < kInputs; ++k) tile[k] = Direct(inputs_.data[k] + at);
      return view;
    }
    for (int k = 0; k < kInputs; ++k) {
      for (int64_t i = 0; i < view.strips; ++i) {
        Unit::template Run<WidenLoop<E>>(inputs_.data[k] + at + i * stride,
                                         copy_[k] + i * view.rows * kWidth,
                                         view.rows * kWidth);
      }
      tile[k] = copy_[k];
    }
    return {.stride = kWidth, .rows = view.strips * view.rows, .ahead = 0};
  }

 private:
  // Returns the place of the first value of a row of blocked channels.
  LOCKSTEP_SYNCBN_INLINE int64_t RowAt(int64_t sample, int64_t pixel) const {
    const int64_t blocks = inputs_.shape.c / kChannelBlock;
    return ((sample * blocks + series_) * inputs_.shape.hw + pixel) *
           kChannelBlock;
  }

  static LOCKSTEP_SYNCBN_INLINE const Compute* Direct(const E* values) {
    if constexpr (std::is_same_v<E, Compute>) {
      return values;
    } else {
      return nullptr;
    }
  }

  // Loads `count` values of a series of planes.
  LOCKSTEP_SYNCBN_INLINE int64_t LoadSeries(int64_t at, int64_t count,
                                            Tile& tile) {
    if constexpr (std::is_same_v<E, Compute>) {
      const int64_t in_plane = at % inputs_.shape.hw;
      if (in_plane + count <= inputs_.shape.hw) {
        for (int k = 0; k < kInputs; ++k) {
          tile[k] = inputs_.data[k] + PlaneOf(at) + in_plane;
        }
        return kTileColumns;
      }
    }
    for (int k = 0; k < kInputs; ++k) {
      CopySeries(inputs_.data[k], at, count, copy_[k]);
      tile[k] = copy_[k];
    }
    return kTileColumns;
  }

  LOCKSTEP_SYNCBN_INLINE void CopySeries(const E* input, int64_t at,
                                         int64_t count, Compute* to) const {
    const int64_t hw = inputs_.shape.hw;
    Unit::template Run<CopyPlanesLoop<E>>(
        input + PlaneOf(at), hw, inputs_.shape.c * hw, at % hw, count, to);
  }

  // Returns where the plane of this series with value `at` begins.
  LOCKSTEP_SYNCBN_INLINE int64_t PlaneOf(int64_t at) const {
    const int64_t hw = inputs_.shape.hw;
    return (at / hw * inputs_.shape.c + series_) * hw;
  }

  const ScanInputs<E, kInputs>& inputs_;
  const int64_t series_;
  alignas(64) Compute copy_[kInputs][kTileRows * kTileColumns];
};

// The number of columns in a block that is narrower than a tile.
inline constexpr int64_t kNarrowColumns = 16;
// The number of values that may be read past the last column's mean.
inline constexpr int64_t kColumnPadding = kNarrowColumns;

// A reduction reads kInputs arrays of one shape:
//
//   struct Reduction {
//     using Element = ...;
//     static constexpr int kInputs = ...;
//     // A loop for units: Run(inputs, view, mean, first, second, written) sets
//     // two numbers for each of the W columns of the tile that `view`
//     // describes. inputs: kInputs pointers. mean: of each column, or null.
//     // written: a tile with the same view, or null.
//     template <int64_t W>
//     using Tile = ...;
//     // Merges two columns (MergeLoop).
//     using Merger = ...;
//   };
template <typename E, int kInputs>
struct ScanArgs {
  ColumnPlan plan;
  ScanInputs<E, kInputs> inputs;
  // With channels last: the mean of each column, and kColumnPadding values
  // more. Otherwise the mean of each channel. Null if the reduction needs no
  // mean.
  const ComputeType<E>* mean = nullptr;
  // Scratch space: [threads, 2, columns].
  double* columns = nullptr;
  // The result of each segment of each series: [items, 2, period].
  double* results = nullptr;
  // An array of the inputs' shape that the tiles write, or null. It may be one
  // of the inputs. Only for tiles of blocked channels that lie in place.
  ComputeType<E>* written = nullptr;
};

// Merges columns by Merger::Merge(count, first, second, more, more_first,
// more_second), which sets the two numbers of `count` values to those of
// `count` + `more` values. first, second: [columns].
template <typename Merger>
struct MergeLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(int64_t count, double* first,
                                         double* second, int64_t more,
                                         const double* more_first,
                                         const double* more_second,
                                         int64_t columns) {
    LOCKSTEP_SYNCBN_SAME_OR_APART
    for (int64_t j = 0; j < columns; ++j) {
      Merger::Merge(count, first[j], second[j], more, more_first[j],
                    more_second[j]);
    }
  }
};

// Runs MergeLoop. Each unit has one copy of a merger that is not simple. A
// simple one is inlined, because a call would take as long as its additions.
template <typename Unit, typename Reduction>
LOCKSTEP_SYNCBN_INLINE void MergeColumns(int64_t count, double* first,
                                         double* second, int64_t more,
                                         const double* more_first,
                                         const double* more_second,
                                         int64_t columns) {
  using Loop = MergeLoop<typename Reduction::Merger>;
  if constexpr (Reduction::Merger::kSimple) {
    Loop::template Run<Unit>(count, first, second, more, more_first,
                             more_second, columns);
  } else {
    Unit::template Run<Loop>(count, first, second, more, more_first,
                             more_second, columns);
  }
}

// Reduces the items [begin, end) of a plan, on one thread.
template <typename Reduction>
struct ScanLoop {
  using E = typename Reduction::Element;
  using Compute = ComputeType<E>;
  using Args = ScanArgs<E, Reduction::kInputs>;

  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const Args* args, int64_t begin,
                                         int64_t end, int64_t thread) {
    const ColumnPlan& plan = args->plan;
    double* const first = args->columns + 2 * thread * plan.columns();
    for (int64_t item = begin; item < end; ++item) {
      RunItem<Unit>(*args, item / plan.segments, item % plan.segments, first,
                    first + plan.columns());
      double* const result = args->results + 2 * item * plan.period;
      std::copy_n(first, plan.period, result);
      std::copy_n(first + plan.columns(), plan.period, result + plan.period);
    }
  }

 private:
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void RunItem(const Args& args, int64_t series,
                                             int64_t segment, double* first,
                                             double* second) {
    const ColumnPlan& plan = args.plan;
    TileLoader<Unit, E, Reduction::kInputs> loader(args.inputs, series);
    const int64_t begin = plan.SegmentBegin(segment);
    const int64_t rows = plan.SegmentBegin(segment + 1) - begin;
    const int64_t columns = plan.columns();
    // With channels first, all columns of a tile have the same mean.
    Compute plane_mean[kTileColumns];
    const Compute* mean = args.mean;
    if (IsBlocked(args.inputs.shape)) {
      ScanPlanes(loader, args, segment,
                 mean == nullptr ? nullptr : mean + series * kChannelBlock,
                 first, second);
      return;
    }
    if (mean != nullptr && !IsChannelsLast(args.inputs.shape)) {
      std::fill_n(plane_mean, kTileColumns, args.mean[series]);
      mean = plane_mean;
    }
    Scan(loader, {begin * columns, columns, rows, columns}, mean, first,
         second);
    MergeGroup<Unit>(plan, rows, first, second);
    if (segment + 1 < plan.segments || plan.rest == 0) return;
    // The columns of the other groups are no longer in use here.
    double* const rest_first = first + plan.period;
    double* const rest_second = second + plan.period;
    Scan(loader, {plan.rows * columns, plan.period, plan.rest, plan.period},
         mean, rest_first, rest_second);
    MergeColumns<Unit, Reduction>(rows * plan.group, first, second, plan.rest,
                                  rest_first, rest_second, plan.period);
  }

  // Reduces a segment of a block of channels.
  template <typename Loader>
  static LOCKSTEP_SYNCBN_INLINE void ScanPlanes(Loader& loader,
                                                const Args& args,
                                                int64_t segment,
                                                const Compute* mean,
                                                double* first, double* second) {
    const ColumnPlan& plan = args.plan;
    std::fill_n(first, kChannelBlock, 0.0);
    std::fill_n(second, kChannelBlock, 0.0);
    const int64_t last = plan.SegmentTile(segment + 1);
    const int64_t start = plan.SegmentBegin(segment);
    int64_t begin = start;
    int64_t end = plan.TileBegin(plan.SegmentTile(segment) + 1);
    for (int64_t tile = plan.SegmentTile(segment); tile < last; ++tile) {
      const int64_t next_end = plan.TileBegin(tile + 2);
      typename Loader::Tile inputs;
      const TileView view = loader.LoadPlanes(begin, end, next_end, inputs);
      Compute* written = args.written;
      if constexpr (std::is_same_v<E, Compute>) {
        if (written != nullptr) written += inputs[0] - args.inputs.data[0];
      }
      ReduceTile<kChannelBlock, Loader>(inputs, view, mean, begin - start,
                                        kChannelBlock, first, second, written);
      begin = end;
      end = next_end;
    }
  }

  // Reduces each column of a region.
  struct RegionLoop {
    template <typename Unit, typename Loader>
    static LOCKSTEP_SYNCBN_INLINE void Run(Loader* loader,
                                           const ScanRegion* region,
                                           const Compute* mean, double* first,
                                           double* second) {
      const int64_t columns = region->columns;
      std::fill_n(first, columns, 0.0);
      std::fill_n(second, columns, 0.0);
      for (int64_t row = 0; row < region->rows; row += kTileRows) {
        const int64_t rows = std::min(kTileRows, region->rows - row);
        int64_t j = 0;
        for (; j + kTileColumns <= columns; j += kTileColumns) {
          ScanTile<kTileColumns>(*loader, *region, row, rows, j, kTileColumns,
                                 mean, first, second);
        }
        for (; j < columns; j += kNarrowColumns) {
          ScanTile<kNarrowColumns>(*loader, *region, row, rows, j,
                                   std::min(kNarrowColumns, columns - j), mean,
                                   first, second);
        }
      }
    }
  };

  template <typename Loader>
  static LOCKSTEP_SYNCBN_INLINE void Scan(Loader& loader,
                                          const ScanRegion& region,
                                          const Compute* mean, double* first,
                                          double* second) {
    Loader::Unit::template Run<RegionLoop>(&loader, &region, mean, first,
                                           second);
  }

  template <int64_t W, typename Loader>
  static LOCKSTEP_SYNCBN_INLINE void ScanTile(Loader& loader,
                                              const ScanRegion& region,
                                              int64_t row, int64_t rows,
                                              int64_t column, int64_t width,
                                              const Compute* mean,
                                              double* first, double* second) {
    typename Loader::Tile tile;
    const int64_t stride =
        loader.template Load<W>(region, row, rows, column, width, tile);
    const TileView view = {
        .stride = stride, .rows = rows, .ahead = kTileRows * stride};
    ReduceTile<W, Loader>(tile, view, mean == nullptr ? nullptr : mean + column,
                          row, width, first + column, second + column);
  }

  // Merges the first `width` columns of a tile into the columns of the `before`
  // rows that come before it.
  template <int64_t W, typename Loader>
  static LOCKSTEP_SYNCBN_INLINE void ReduceTile(
      const typename Loader::Tile& tile, const TileView& view,
      const Compute* mean, int64_t before, int64_t width, double* first,
      double* second, Compute* written = nullptr) {
    double tile_first[W];
    double tile_second[W];
    const Compute* const* const inputs = tile.data();
    Loader::Unit::template Run<typename Reduction::template Tile<W>>(
        inputs, &view, mean, &tile_first[0], &tile_second[0], written);
    MergeColumns<typename Loader::Unit, Reduction>(
        before, first, second, view.strips * view.rows, tile_first, tile_second,
        width);
  }

  // Merges the columns of a channel into its first one, by repeated halving.
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void MergeGroup(const ColumnPlan& plan,
                                                int64_t rows, double* first,
                                                double* second) {
    int64_t counts[kMaxPixelsPerRow];
    std::fill_n(counts, plan.group, rows);
    for (int64_t groups = plan.group; groups > 1;) {
      const int64_t half = (groups + 1) / 2;
      for (int64_t k = half; k < groups; ++k) {
        const int64_t to = (k - half) * plan.period;
        const int64_t from = k * plan.period;
        MergeColumns<Unit, Reduction>(counts[k - half], first + to, second + to,
                                      counts[k], first + from, second + from,
                                      plan.period);
        counts[k - half] += counts[k];
      }
      groups = half;
    }
  }
};

// Merges the segments of each series into its first one. Its results are then
// the ones of channel series * period + j.
template <typename Reduction>
struct MergeSegmentsLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const ColumnPlan* plan,
                                         double* results) {
    const int64_t period = plan->period;
    for (int64_t i = 0; i < plan->series; ++i) {
      double* const series = results + 2 * i * plan->segments * period;
      for (int64_t s = 1; s < plan->segments; ++s) {
        const int64_t begin = plan->SegmentBegin(s);
        const int64_t rows = plan->SegmentBegin(s + 1) - begin;
        const int64_t rest = s + 1 == plan->segments ? plan->rest : 0;
        const double* const more = series + 2 * s * period;
        MergeColumns<Unit, Reduction>(
            begin * plan->group, series, series + period,
            rows * plan->group + rest, more, more + period, period);
      }
    }
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_COLUMN_SCAN_H_
