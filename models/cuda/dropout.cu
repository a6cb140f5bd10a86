#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/dropout.h"
#include "models/program/random_mask.h"

namespace lockstep {
namespace {

__device__ inline MaskKey KeyOf(const DeviceMaskKey& of) {
  MaskKey key = of.key;
  if (of.numbers != nullptr) {
    key.seed = of.numbers->seed;
    key.step = of.numbers->step;
  }
  return key;
}

// Calls visit(mask, element of the sample, element of the array). Threads with
// one blockIdx.y share a sample.
template <typename Visit>
__device__ inline void ForMasked(const MaskKey& key, int64_t n, int64_t size,
                                 const Visit& visit) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t sample = blockIdx.y; sample < n; sample += gridDim.y) {
    const RandomMask mask(key, sample);
    int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i < size; i += step) visit(mask, i, sample * size + i);
  }
}

__device__ inline float BranchFactor(const RandomMask& mask) {
  return mask.Keeps(0) ? mask.scale() : 0;
}

struct Drop {
  const float* from;
  float* to;
  __device__ void operator()(const RandomMask& mask, int64_t element,
                             int64_t at) const {
    to[at] = mask.Keeps(element) ? mask.scale() * from[at] : 0;
  }
};

struct Add {
  const float* x;
  const float* branch;
  float* y;
  __device__ void operator()(const RandomMask& mask, int64_t,
                             int64_t at) const {
    y[at] = x[at] + BranchFactor(mask) * branch[at];
  }
};

struct SplitGradient {
  const float* dy;
  float* dx;
  float* dbranch;
  __device__ void operator()(const RandomMask& mask, int64_t,
                             int64_t at) const {
    const float gradient = dy[at];
    dbranch[at] = BranchFactor(mask) * gradient;
    if (dx != nullptr) dx[at] = gradient;
  }
};

template <typename Visit>
__global__ void __launch_bounds__(kThreadsOver)
    MaskedKernel(DeviceMaskKey key, int64_t n, int64_t size, Visit visit) {
  ForMasked(KeyOf(key), n, size, visit);
}

template <typename Visit>
absl::Status Launch(const DeviceMaskKey& key, int64_t n, int64_t size,
                    const Visit& visit, cudaStream_t stream) {
  // More blocks than a GPU runs at once.
  constexpr int64_t kMostSamples = 512;
  constexpr int64_t kMostBlocks = 64;
  const int64_t blocks =
      std::min((size + kThreadsOver - 1) / kThreadsOver, kMostBlocks);
  return LaunchGrid(dim3(static_cast<unsigned>(blocks),
                         static_cast<unsigned>(std::min(n, kMostSamples))),
                    kThreadsOver, stream, "MaskedKernel launch",
                    MaskedKernel<Visit>, key, n, size, visit);
}

}  // namespace

absl::Status LoadDropoutKernels() {
  return LoadKernels(MaskedKernel<Drop>, MaskedKernel<Add>,
                     MaskedKernel<SplitGradient>);
}

absl::Status DropOutOnGpu(const DeviceMaskKey& key, int64_t n, int64_t size,
                          const float* from, float* to, cudaStream_t stream) {
  return Launch(key, n, size, Drop{from, to}, stream);
}

absl::Status AddBranch(const DeviceMaskKey& key, int64_t n, int64_t size,
                       const float* x, const float* branch, float* y,
                       cudaStream_t stream) {
  return Launch(key, n, size, Add{x, branch, y}, stream);
}

absl::Status AddBranchBackward(const DeviceMaskKey& key, int64_t n,
                               int64_t size, const float* dy, float* dx,
                               float* dbranch, cudaStream_t stream) {
  return Launch(key, n, size,
                SplitGradient{dy, dx == dy ? nullptr : dx, dbranch}, stream);
}

}  // namespace lockstep
