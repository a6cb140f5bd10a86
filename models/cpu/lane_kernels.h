// The loops of small networks, on sixteen samples at once.
//
// Sixteen samples are the innermost dimension. One value of all sixteen is a
// `lane group`: 16 floats, which fill one AVX-512 register. A layer of 20 or 50
// channels therefore wastes no part of a register, and ReLU and pooling need no
// shuffles. Parameters are used row-major, without conversion. Images are [c,
// h, w] of lane groups.
//
// x, y, dx, dy: host float32, lane groups, aligned to 64 bytes. w, b, dw, db:
// host float32 parameters and their gradients, of any alignment. Results are
// added to dw and db; all other outputs are overwritten.
//
// The loops may be called only if BestVectorUnit() is kAvx512. They are
// compiled only for AVX-512, because half as many registers of half the size
// make the same loops ten times as slow.
#ifndef LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_
#define LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_

#include <cstdint>

namespace lockstep {

inline constexpr int64_t kLanes = 16;

// A convolution with stride 1 and without padding: [in, height, width] -> [out,
// height - kernel + 1, width - kernel + 1]. Weights are [out, in, kernel,
// kernel]. The gradients support kernels of 3 and 5 only.
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

// An average pool whose windows do not overlap: [channels, rows * kernel,
// columns * kernel] -> [channels, rows, columns]. If x is not null, PoolLanesDx
// also applies the gradient of the ReLU whose output is x: dx is 0 wherever x
// is not above 0. If x is null, dx is the gradient of the average alone.
struct LanePool {
  int64_t channels, rows, columns;
  int64_t kernel;
};
void PoolLanes(const LanePool& shape, const float* x, float* y);
void PoolLanesDx(const LanePool& shape, const float* x, const float* dy,
                 float* dx);

// A linear layer, y = W x + b. W[i, o] is at i * in_stride + o * out_stride.
struct LaneLinear {
  int64_t in, out;
  int64_t in_stride, out_stride;
  bool relu;
};
void MultiplyLanes(const LaneLinear& shape, const float* x, const float* w,
                   const float* b, float* y);
void MultiplyLanesDx(const LaneLinear& shape, const float* dy, const float* w,
                     float* dx);
// Adds to dw the gradients of the weights of inputs [begin, end), over `slabs`
// times sixteen samples; adds to db too if begin is 0. x is [slabs, in], dy is
// [slabs, out].
void MultiplyLanesDw(const LaneLinear& shape, int64_t slabs, int64_t begin,
                     int64_t end, const float* x, const float* dy, float* dw,
                     float* db);

// Sets dy to 0 wherever y is not above 0, for `groups` lane groups.
void ReluLanesDy(int64_t groups, const float* y, float* dy);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LANE_KERNELS_H_
