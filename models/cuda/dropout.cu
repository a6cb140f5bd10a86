#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "base/data_types.h"
#include "models/cuda/dropout.h"
#include "models/cuda/kernel_types.h"
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

template <typename T>
struct Drop {
  const T* from;
  T* to;
  __device__ void operator()(const RandomMask& mask, int64_t element,
                             int64_t at) const {
    if (mask.Keeps(element)) {
      to[at] = RoundTo<T>(mask.scale() * ToFloat(from[at]));
    } else {
      to[at] = RoundTo<T>(0);
    }
  }
};

template <typename T>
struct Add {
  const T* x;
  const T* branch;
  T* y;
  __device__ void operator()(const RandomMask& mask, int64_t,
                             int64_t at) const {
    y[at] =
        RoundTo<T>(ToFloat(x[at]) + BranchFactor(mask) * ToFloat(branch[at]));
  }
};

template <typename T>
struct SplitGradient {
  const T* dy;
  T* dx;
  T* dbranch;
  __device__ void operator()(const RandomMask& mask, int64_t,
                             int64_t at) const {
    const T gradient = dy[at];
    dbranch[at] = RoundTo<T>(BranchFactor(mask) * ToFloat(gradient));
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
  return ForActivations([]<typename T>(T) {
    return LoadKernels(MaskedKernel<Drop<T>>, MaskedKernel<Add<T>>,
                       MaskedKernel<SplitGradient<T>>);
  });
}

absl::Status DropOutOnGpu(const DeviceMaskKey& key, DataType type, int64_t n,
                          int64_t size, const void* from, void* to,
                          cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return Launch(key, n, size, Drop<T>{Elements<T>(from), Elements<T>(to)},
                  stream);
  });
}

absl::Status AddBranch(const DeviceMaskKey& key, DataType type, int64_t n,
                       int64_t size, const void* x, const void* branch, void* y,
                       cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return Launch(key, n, size,
                  Add<T>{Elements<T>(x), Elements<T>(branch), Elements<T>(y)},
                  stream);
  });
}

absl::Status AddBranchBackward(const DeviceMaskKey& key, DataType type,
                               int64_t n, int64_t size, const void* dy,
                               void* dx, void* dbranch, cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return Launch(
        key, n, size,
        SplitGradient<T>{Elements<T>(dy), dx == dy ? nullptr : Elements<T>(dx),
                         Elements<T>(dbranch)},
        stream);
  });
}

}  // namespace lockstep
