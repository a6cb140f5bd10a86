// The loops of small networks, on sixteen samples at once.
//
// Sixteen samples lie innermost: a value of all of them is a `lane group`, 16
// floats that one AVX-512 register holds. So a layer of 20 or 50 channels
// wastes no part of a register, ReLU and pooling need no shuffles, and
// parameters are used as they lie, row-major. Images are [c, h, w] of lane
// groups.
//
// x, y, dx, dy: host float32, lane groups, aligned to 64 bytes. w, b, dw, db:
// host float32, parameters and gradients, of any alignment. What is named d of
// a parameter is added to; other results are overwritten.
//
// The loops may be called only where BestVectorUnit() is kAvx512: with half as
// many registers of half the size the same loops are ten times as slow, so they
// are compiled for nothing else.
#ifndef LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_
#define LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_

#include <cstdint>

namespace lockstep {

inline constexpr int64_t kLanes = 16;

// A convolution with stride 1 and without padding: [in, height, width] ->
// [out, height - kernel + 1, width - kernel + 1]. Weights [out, in, kernel,
// kernel]. The gradients' kernels are 3 and 5 only.
struct LaneConvolution {
  int64_t in, height, width;
  int64_t out;
  int64_t kernel;
  bool relu;

  int64_t rows() const { return height - kernel + 1; }
  int64_t columns() const { return width - kernel + 1; }
};
void ConvolveLanes(const LaneConvolution& shape, const float* x, const float* w,
                   const float* b, float* y);
void ConvolveLanesDx(const LaneConvolution& shape, const float* dy,
                     const float* w, float* dx);
void ConvolveLanesDw(const LaneConvolution& shape, const float* x,
                     const float* dy, float* dw, float* db);

// Averages over windows side by side: [channels, rows * kernel, columns *
// kernel] -> [channels, rows, columns]. dx is 0 where x is not above 0, as
// behind a ReLU whose output is x; null: everywhere the average's.
struct LanePool {
  int64_t channels, rows, columns;
  int64_t kernel;
};
void PoolLanes(const LanePool& shape, const float* x, float* y);
void PoolLanesDx(const LanePool& shape, const float* x, const float* dy,
                 float* dx);

// y = W x + b; W[i, o] is at i * in_stride + o * out_stride.
struct LaneLinear {
  int64_t in, out;
  int64_t in_stride, out_stride;
  bool relu;
};
void MultiplyLanes(const LaneLinear& shape, const float* x, const float* w,
                   const float* b, float* y);
void MultiplyLanesDx(const LaneLinear& shape, const float* dy, const float* w,
                     float* dx);
// For `slabs` times sixteen samples, x [slabs, in] and dy [slabs, out], the
// gradients of the weights of inputs [begin, end), and that of b if begin is 0.
void MultiplyLanesDw(const LaneLinear& shape, int64_t slabs, int64_t begin,
                     int64_t end, const float* x, const float* dy, float* dw,
                     float* db);

// dy = 0 where y is not above 0, for `groups` lane groups.
void ReluLanesDy(int64_t groups, const float* y, float* dy);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_
