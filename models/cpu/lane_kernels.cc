#include "models/cpu/lane_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

#if defined(__x86_64__)
#define LOCKSTEP_LANES \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#else
#define LOCKSTEP_LANES
#endif
// Inlined into functions that are LOCKSTEP_LANES.
#define LOCKSTEP_LANES_INLINE __attribute__((always_inline)) inline

typedef float Group __attribute__((vector_size(kLanes * sizeof(float))));

LOCKSTEP_LANES_INLINE const Group* Groups(const float* x) {
  return reinterpret_cast<const Group*>(x);
}
LOCKSTEP_LANES_INLINE Group* Groups(float* x) {
  return reinterpret_cast<Group*>(x);
}

// Calls f(Block<count>(), i) for blocks that cover [0, n): as many of kLarge as
// fit, then of 1.
template <int kCount>
struct Block {
  static constexpr int count = kCount;
};
template <int kLarge, typename F>
LOCKSTEP_LANES_INLINE void ForBlocks(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLarge <= n; i += kLarge) f(Block<kLarge>(), i);
  for (; i < n; ++i) f(Block<1>(), i);
}

// Adds lanes in pairs that are kHalf apart. Of each 2 * kHalf lanes of the
// result, the first half holds a's sums and the second half b's.
template <int kHalf, int... kLane>
LOCKSTEP_LANES_INLINE void AddPairs(const Group& a, const Group& b, Group& sum,
                                    std::integer_sequence<int, kLane...>) {
  const Group kept = __builtin_shufflevector(
      a, b, (kLane & kHalf ? kLane + int{kLanes} : kLane)...);
  const Group moved = __builtin_shufflevector(
      a, b, (kLane & kHalf ? kLane + int{kLanes} - kHalf : kLane + kHalf)...);
  sum = kept + moved;
}

// Sets lane i of the first group to the sum of the lanes of group i.
template <int kHalf = kLanes / 2>
LOCKSTEP_LANES_INLINE void SumLanes(Group (&groups)[kLanes]) {
#pragma GCC unroll 8
  for (int i = 0; i < kHalf; ++i) {
    AddPairs<kHalf>(groups[i], groups[i + kHalf], groups[i],
                    std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (kHalf > 1) SumLanes<kHalf / 2>(groups);
}

// Adds the sum of the lanes of sum[r][c] to to[r * row + c * column].
template <int kRows, int kColumns>
LOCKSTEP_LANES_INLINE void AddSums(const Group (&sum)[kRows][kColumns],
                                   int64_t row, int64_t column, float* to) {
  constexpr int kCount = kRows * kColumns;
#pragma GCC unroll 2
  for (int first = 0; first < kCount; first += kLanes) {
    Group groups[kLanes] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (first + i < kCount) {
        groups[i] = sum[(first + i) / kColumns][(first + i) % kColumns];
      }
    }
    SumLanes(groups);
    float sums[kLanes];
    std::memcpy(sums, groups, sizeof sums);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const int at = first + i;
      if (at >= kCount) break;
      to[at / kColumns * row + at % kColumns * column] += sums[i];
    }
  }
}

// Adds the sum of the `groups` groups of dy at o * row + i * column to db[o].
LOCKSTEP_LANES_INLINE void AddBias(int64_t out, int64_t groups, int64_t row,
                                   int64_t column, const float* dy, float* db) {
  for (int64_t o = 0; o < out; ++o) {
    Group sum[1][1] = {};
    for (int64_t i = 0; i < groups; ++i) {
      sum[0][0] += Groups(dy)[o * row + i * column];
    }
    AddSums(sum, 0, 0, db + o);
  }
}

LOCKSTEP_LANES_INLINE void Store(const Group& value, bool relu, Group* to) {
  const Group zero = {};
  *to = relu ? (value > zero ? value : zero) : value;
}

// Computes kOut x kColumns outputs, whose sums stay in registers.
template <int kOut, int kColumns>
LOCKSTEP_LANES_INLINE void ConvolutionTile(const LaneConvolution& shape,
                                           const Group* x, const float* w,
                                           const float* b, Group* y) {
  Group sum[kOut][kColumns];
  for (int o = 0; o < kOut; ++o) {
    for (int i = 0; i < kColumns; ++i) sum[o][i] = Group{} + b[o];
  }
  const int64_t filter = shape.in * shape.kernel * shape.kernel;
  for (int64_t c = 0; c < shape.in; ++c) {
    const Group* row = x + c * shape.height * shape.width;
    for (int64_t r = 0; r < shape.kernel; ++r, row += shape.width) {
      for (int64_t k = 0; k < shape.kernel; ++k, ++w) {
        Group value[kColumns];
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i) value[i] = row[k + i];
#pragma GCC unroll 8
        for (int o = 0; o < kOut; ++o) {
          const float tap = w[o * filter];
#pragma GCC unroll 8
          for (int i = 0; i < kColumns; ++i) sum[o][i] += value[i] * tap;
        }
      }
    }
  }
  const int64_t plane = shape.rows() * shape.columns();
  for (int o = 0; o < kOut; ++o) {
    for (int i = 0; i < kColumns; ++i) {
      Store(sum[o][i], shape.relu, y + o * plane + i);
    }
  }
}

// Adds dy[o, r - kr, i] w[o, c, kr, k] to dx[c, r, i + k]. The part of dx that
// a block of columns of dy is added to stays in registers.
template <int kKernel, int kIn, int kColumns>
LOCKSTEP_LANES_INLINE void ConvolutionDxTile(const LaneConvolution& shape,
                                             const Group* dy, const float* w,
                                             int64_t row, Group* dx) {
  constexpr int kWide = kColumns + kKernel - 1;
  const int64_t plane = shape.height * shape.width;
  Group sum[kIn][kWide];
  for (int c = 0; c < kIn; ++c) {
    for (int i = 0; i < kWide; ++i) sum[c][i] = dx[c * plane + i];
  }
  const int64_t first = std::max<int64_t>(0, row - shape.rows() + 1);
  const int64_t last = std::min<int64_t>(kKernel - 1, row);
  for (int64_t o = 0; o < shape.out; ++o) {
    const float* const filter = w + o * shape.in * kKernel * kKernel;
    for (int64_t r = first; r <= last; ++r) {
      const Group* const from =
          dy + (o * shape.rows() + row - r) * shape.columns();
      const float* const taps = filter + r * kKernel;
#pragma GCC unroll 8
      for (int i = 0; i < kColumns; ++i) {
        const Group value = from[i];
#pragma GCC unroll 8
        for (int k = 0; k < kKernel; ++k) {
#pragma GCC unroll 2
          for (int c = 0; c < kIn; ++c) {
            sum[c][i + k] += value * taps[c * kKernel * kKernel + k];
          }
        }
      }
    }
  }
  for (int c = 0; c < kIn; ++c) {
    for (int i = 0; i < kWide; ++i) dx[c * plane + i] = sum[c][i];
  }
}

template <int kKernel>
LOCKSTEP_LANES_INLINE void ConvolutionDx(const LaneConvolution& shape,
                                         const float* dy, const float* w,
                                         float* dx) {
  const int64_t plane = shape.height * shape.width;
  std::fill_n(dx, shape.in * plane * kLanes, 0.0f);
  ForBlocks<2>(
      shape.in, [&](auto ins, int64_t c) __attribute__((always_inline)) {
        for (int64_t r = 0; r < shape.height; ++r) {
          ForBlocks<8>(
              shape.columns(), [&](auto columns,
                                   int64_t i) __attribute__((always_inline)) {
                ConvolutionDxTile<kKernel, ins.count, columns.count>(
                    shape, Groups(dy) + i, w + c * kKernel * kKernel, r,
                    Groups(dx) + c * plane + r * shape.width + i);
              });
        }
      });
}

// Computes the gradient of one row of taps of kOut filters.
template <int kKernel, int kOut>
LOCKSTEP_LANES_INLINE void ConvolutionDwTile(const LaneConvolution& shape,
                                             const Group* x, const Group* dy,
                                             float* dw) {
  const int64_t columns = shape.columns();
  const int64_t plane = shape.rows() * columns;
  Group sum[kOut][kKernel] = {};
  for (int64_t r = 0; r < shape.rows(); ++r, x += shape.width, dy += columns) {
    for (int64_t i = 0; i < columns; ++i) {
#pragma GCC unroll 8
      for (int o = 0; o < kOut; ++o) {
        const Group gradient = dy[o * plane + i];
#pragma GCC unroll 8
        for (int k = 0; k < kKernel; ++k) sum[o][k] += gradient * x[i + k];
      }
    }
  }
  AddSums(sum, shape.in * kKernel * kKernel, 1, dw);
}

template <int kKernel>
LOCKSTEP_LANES_INLINE void ConvolutionDw(const LaneConvolution& shape,
                                         const float* x, const float* dy,
                                         float* dw) {
  const int64_t plane = shape.rows() * shape.columns();
  ForBlocks<5>(
      shape.out, [&](auto outs, int64_t o) __attribute__((always_inline)) {
        for (int64_t c = 0; c < shape.in; ++c) {
          for (int64_t r = 0; r < kKernel; ++r) {
            ConvolutionDwTile<kKernel, outs.count>(
                shape, Groups(x) + (c * shape.height + r) * shape.width,
                Groups(dy) + o * plane,
                dw + ((o * shape.in + c) * kKernel + r) * kKernel);
          }
        }
      });
}

// Computes y = matrix * x (+ start). Row r, column c of the matrix is at r *
// row + c * column.
LOCKSTEP_LANES_INLINE void Product(int64_t rows, int64_t columns, int64_t row,
                                   int64_t column, const float* matrix,
                                   const float* x, const float* start,
                                   bool relu, float* y) {
  ForBlocks<16>(
      rows, [&](auto block, int64_t first) __attribute__((always_inline)) {
        Group sum[block.count];
        for (int r = 0; r < block.count; ++r) {
          sum[r] = Group{} + (start == nullptr ? 0 : start[first + r]);
        }
        const float* at = matrix + first * row;
        for (int64_t c = 0; c < columns; ++c, at += column) {
          const Group value = Groups(x)[c];
#pragma GCC unroll 16
          for (int r = 0; r < block.count; ++r) sum[r] += value * at[r * row];
        }
        for (int r = 0; r < block.count; ++r) {
          Store(sum[r], relu, Groups(y) + first + r);
        }
      });
}

template <int kIn, int kOut>
LOCKSTEP_LANES_INLINE void LinearDwTile(const LaneLinear& shape, int64_t slabs,
                                        const Group* x, const Group* dy,
                                        float* dw) {
  Group sum[kIn][kOut] = {};
  for (int64_t s = 0; s < slabs; ++s, x += shape.in, dy += shape.out) {
#pragma GCC unroll 4
    for (int i = 0; i < kIn; ++i) {
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) sum[i][o] += x[i] * dy[o];
    }
  }
  AddSums(sum, shape.in_stride, shape.out_stride, dw);
}

}  // namespace

LOCKSTEP_LANES void ConvolveLanes(const LaneConvolution& shape, const float* x,
                                  const float* w, const float* b, float* y) {
  const int64_t filter = shape.in * shape.kernel * shape.kernel;
  const int64_t columns = shape.columns();
  ForBlocks<5>(
      shape.out, [&](auto outs, int64_t o) __attribute__((always_inline)) {
        for (int64_t r = 0; r < shape.rows(); ++r) {
          ForBlocks<4>(
              columns, [&](auto block,
                           int64_t i) __attribute__((always_inline)) {
                ConvolutionTile<outs.count, block.count>(
                    shape, Groups(x) + r * shape.width + i, w + o * filter,
                    b + o, Groups(y) + (o * shape.rows() + r) * columns + i);
              });
        }
      });
}

LOCKSTEP_LANES void ConvolveLanesDx(const LaneConvolution& shape,
                                    const float* dy, const float* w,
                                    float* dx) {
  shape.kernel == 3 ? ConvolutionDx<3>(shape, dy, w, dx)
                    : ConvolutionDx<5>(shape, dy, w, dx);
}

LOCKSTEP_LANES void ConvolveLanesDw(const LaneConvolution& shape,
                                    const float* x, const float* dy, float* dw,
                                    float* db) {
  shape.kernel == 3 ? ConvolutionDw<3>(shape, x, dy, dw)
                    : ConvolutionDw<5>(shape, x, dy, dw);
  const int64_t plane = shape.rows() * shape.columns();
  AddBias(shape.out, plane, plane, 1, dy, db);
}

LOCKSTEP_LANES void PoolLanes(const LanePool& shape, const float* x, float* y) {
  const int64_t kernel = shape.kernel, width = shape.columns * kernel;
  const float scale = 1.0f / static_cast<float>(kernel * kernel);
  Group* to = Groups(y);
  for (int64_t r = 0; r < shape.channels * shape.rows; ++r) {
    const Group* const band = Groups(x) + r * kernel * width;
    for (int64_t i = 0; i < shape.columns; ++i) {
      Group sum = {};
      for (int64_t a = 0; a < kernel; ++a) {
        for (int64_t b = 0; b < kernel; ++b) {
          sum += band[a * width + i * kernel + b];
        }
      }
      *to++ = sum * scale;
    }
  }
}

LOCKSTEP_LANES void PoolLanesDx(const LanePool& shape, const float* x,
                                const float* dy, float* dx) {
  const int64_t kernel = shape.kernel;
  const float scale = 1.0f / static_cast<float>(kernel * kernel);
  const Group zero = {};
  int64_t at = 0;
  for (int64_t r = 0; r < shape.channels * shape.rows * kernel; ++r) {
    const Group* from = Groups(dy) + r / kernel * shape.columns;
    for (int64_t i = 0; i < shape.columns; ++i, ++from) {
      const Group value = *from * scale;
      for (int64_t b = 0; b < kernel; ++b, ++at) {
        if (x == nullptr) {
          Groups(dx)[at] = value;
        } else {
          Groups(dx)[at] = Groups(x)[at] > zero ? value : zero;
        }
      }
    }
  }
}

LOCKSTEP_LANES void MultiplyLanes(const LaneLinear& shape, const float* x,
                                  const float* w, const float* b, float* y) {
  Product(shape.out, shape.in, shape.out_stride, shape.in_stride, w, x, b,
          shape.relu, y);
}

LOCKSTEP_LANES void MultiplyLanesDx(const LaneLinear& shape, const float* dy,
                                    const float* w, float* dx) {
  Product(shape.in, shape.out, shape.in_stride, shape.out_stride, w, dy,
          nullptr, false, dx);
}

LOCKSTEP_LANES void MultiplyLanesDw(const LaneLinear& shape, int64_t slabs,
                                    int64_t begin, int64_t end, const float* x,
                                    const float* dy, float* dw, float* db) {
  ForBlocks<4>(
      end - begin, [&](auto ins, int64_t i) __attribute__((always_inline)) {
        i += begin;
        ForBlocks<4>(
            shape.out, [&](auto outs,
                           int64_t o) __attribute__((always_inline)) {
              LinearDwTile<ins.count, outs.count>(
                  shape, slabs, Groups(x) + i, Groups(dy) + o,
                  dw + i * shape.in_stride + o * shape.out_stride);
            });
      });
  if (begin == 0) AddBias(shape.out, slabs, 1, shape.out, dy, db);
}

LOCKSTEP_LANES void ReluLanesDy(int64_t groups, const float* y, float* dy) {
  const Group zero = {};
  for (int64_t i = 0; i < groups; ++i) {
    Groups(dy)[i] = Groups(y)[i] > zero ? Groups(dy)[i] : zero;
  }
}

}  // namespace lockstep
