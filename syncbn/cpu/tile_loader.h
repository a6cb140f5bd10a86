// Tiles of activations, for reductions. For files that are compiled with
// -ffp-contract=off.
#ifndef LOCKSTEP_SYNCBN_CPU_TILE_LOADER_H_
#define LOCKSTEP_SYNCBN_CPU_TILE_LOADER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "syncbn/activations.h"
#include "syncbn/cpu/column_plan.h"
#include "syncbn/cpu/vector_loops.h"

namespace lockstep {

// Arrays of one shape.
template <typename E, int kInputs>
struct ScanInputs {
  ActivationShape shape;
  std::array<const E*, kInputs> data;
};

// Rows of a series, of which each starts `stride` values after the one before.
struct ScanRegion {
  int64_t start;  // Values of the series before it.
  int64_t stride;
  int64_t rows;
  int64_t columns;
};

// Tiles as arrays of what is computed in: where they lie, if that can be, else
// as a copy that stays in the cache.
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
  // of the region; returns the stride. What is not there of W columns is zero.
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
        CopyRows<W>(inputs_.data[k] + at, region.stride, rows, width, copy_[k]);
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

 private:
  template <int64_t W>
  static LOCKSTEP_SYNCBN_INLINE void CopyRows(const E* from, int64_t stride,
                                              int64_t rows, int64_t width,
                                              Compute* to) {
    if (width == W) {
      for (int64_t r = 0; r < rows; ++r) {
        Unit::template Widen<E>(from + r * stride, to + r * W, W);
      }
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      Unit::template Widen<E>(from + r * stride, to + r * W, width);
      std::fill_n(to + r * W + width, W - width, Compute{0});
    }
  }

  // `count` values of a series of planes.
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
    int64_t in_plane = at % hw;
    const E* plane = input + PlaneOf(at);
    while (count > 0) {
      const int64_t run = std::min(count, hw - in_plane);
      Unit::template Widen<E>(plane + in_plane, to, run);
      to += run;
      count -= run;
      plane += inputs_.shape.c * hw;
      in_plane = 0;
    }
  }

  // Where the plane of this series begins that has its value `at`.
  LOCKSTEP_SYNCBN_INLINE int64_t PlaneOf(int64_t at) const {
    const int64_t hw = inputs_.shape.hw;
    return (at / hw * inputs_.shape.c + series_) * hw;
  }

  const ScanInputs<E, kInputs>& inputs_;
  const int64_t series_;
  alignas(64) Compute copy_[kInputs][kTileRows * kTileColumns];
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_TILE_LOADER_H_
