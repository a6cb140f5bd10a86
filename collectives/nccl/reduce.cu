// Element-wise reduction of device memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/nccl/reduce.h"

namespace lockstep {
namespace {

constexpr int64_t kVectorBytes = 16;  // The widest load and store there is.

// A multiprocessor holds 2048 threads; eight blocks of 256 keep more loads in
// flight than memory needs to be busy.
constexpr int kBlocksPerMultiprocessor = 8;

// 16 bytes that are loaded and stored at once.
template <typename T>
struct alignas(kVectorBytes) Vector {
  static constexpr int kSize = kVectorBytes / sizeof(T);
  T elements[kSize];
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void Store(float x, float& to) { to = x; }
__device__ inline void Store(float x, __half& to) { to = __float2half_rn(x); }
__device__ inline void Store(float x, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(x);
}

template <ReduceOp op>
__device__ inline float Combine(float a, float b) {
  if constexpr (op == ReduceOp::kSum) return a + b;
  if constexpr (op == ReduceOp::kProduct) return a * b;
  // A NaN is the one value that differs from itself.
  if (a != a) return a;
  if (b != b) return b;
  if constexpr (op == ReduceOp::kMin) return b < a ? b : a;
  return a < b ? b : a;
}

template <ReduceOp op, typename T>
__device__ inline void CombineInto(T& accumulator, T incoming) {
  Store(Combine<op>(ToFloat(accumulator), ToFloat(incoming)), accumulator);
}

// The elements are `head` single ones, `vectors` vectors, and single ones up to
// `size`. Threads stride over the vectors, then over the single elements as if
// head and tail were one range.
template <ReduceOp op, typename T>
__global__ void ReduceKernel(const T* __restrict__ incoming,
                             T* __restrict__ accumulator, int64_t head,
                             int64_t vectors, int64_t size) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;

  const auto* const in = reinterpret_cast<const Vector<T>*>(incoming + head);
  auto* const out = reinterpret_cast<Vector<T>*>(accumulator + head);
  for (int64_t i = first; i < vectors; i += step) {
    const Vector<T> operand = in[i];
    Vector<T> result = out[i];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      CombineInto<op>(result.elements[k], operand.elements[k]);
    }
    out[i] = result;
  }

  for (int64_t i = first; i < size - vectors * kSize; i += step) {
    const int64_t place = i < head ? i : i + vectors * kSize;
    CombineInto<op>(accumulator[place], incoming[place]);
  }
}

uintptr_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

template <typename T>
absl::Status CheckMemory(DeviceSpan<const T> incoming,
                         DeviceSpan<T> accumulator) {
  if (incoming.size() != accumulator.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Reduce: ", incoming.size(), " incoming elements, but ",
                     accumulator.size(), " in the accumulator"));
  }
  const uintptr_t in = Address(incoming.data());
  const uintptr_t out = Address(accumulator.data());
  if (in % sizeof(T) != 0 || out % sizeof(T) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Reduce: memory is not aligned to the elements' ",
                     sizeof(T), " bytes"));
  }
  const uintptr_t bytes = static_cast<uintptr_t>(incoming.size_bytes());
  if (in < out + bytes && out < in + bytes) {
    return absl::InvalidArgumentError(
        "Reduce: incoming elements and accumulator overlap");
  }
  return absl::OkStatus();
}

// How the elements are cut (see ReduceKernel) and spread over threads.
struct Plan {
  int64_t head;
  int64_t vectors;
  int64_t blocks;
};

template <typename T>
Plan MakePlan(const T* incoming, const T* accumulator, int64_t size,
              int64_t threads, int64_t max_blocks) {
  const int64_t offset =
      static_cast<int64_t>(Address(accumulator) % kVectorBytes);
  const int64_t in_offset =
      static_cast<int64_t>(Address(incoming) % kVectorBytes);
  const int64_t element = sizeof(T);
  Plan plan = {};
  if (offset == in_offset) {
    const int64_t to_boundary = (kVectorBytes - offset) % kVectorBytes;
    plan.head = std::min(size, to_boundary / element);
    plan.vectors = (size - plan.head) / Vector<T>::kSize;
  }
  const int64_t single = size - plan.vectors * Vector<T>::kSize;
  const int64_t wanted = std::max(plan.vectors, single);
  plan.blocks = std::min(max_blocks, (wanted + threads - 1) / threads);
  return plan;
}

absl::Status CheckShape(const ReduceShape& shape) {
  if (shape.max_blocks < 0 || shape.threads_per_block < 1 ||
      shape.threads_per_block > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Reduce: max_blocks=", shape.max_blocks, ", threads_per_block=",
        shape.threads_per_block, ": want at least 0, and 1 to 1024"));
  }
  return absl::OkStatus();
}

// Sets `blocks` to shape.max_blocks, or to what fills the current device.
absl::Status MaxBlocks(const ReduceShape& shape, int64_t& blocks) {
  blocks = shape.max_blocks;
  if (blocks > 0) return absl::OkStatus();
  int device = 0;
  int multiprocessors = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  blocks = int64_t{kBlocksPerMultiprocessor} * multiprocessors;
  return absl::OkStatus();
}

template <typename T>
using Kernel = void (*)(const T*, T*, int64_t, int64_t, int64_t);

// Null for an op that does not exist.
template <typename T>
Kernel<T> KernelFor(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceKernel<ReduceOp::kSum, T>;
    case ReduceOp::kProduct:
      return ReduceKernel<ReduceOp::kProduct, T>;
    case ReduceOp::kMin:
      return ReduceKernel<ReduceOp::kMin, T>;
    case ReduceOp::kMax:
      return ReduceKernel<ReduceOp::kMax, T>;
  }
  return nullptr;
}

}  // namespace

template <typename T>
absl::Status Reduce(ReduceOp op, DeviceSpan<const T> incoming,
                    DeviceSpan<T> accumulator, cudaStream_t stream,
                    const ReduceShape& shape) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMemory(incoming, accumulator));
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(shape));
  const Kernel<T> kernel = KernelFor<T>(op);
  if (kernel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Reduce: no operation ", static_cast<int>(op)));
  }
  if (accumulator.empty()) return absl::OkStatus();
  int64_t max_blocks = 0;
  LOCKSTEP_RETURN_IF_ERROR(MaxBlocks(shape, max_blocks));
  const Plan plan =
      MakePlan<T>(incoming.data(), accumulator.data(), accumulator.size(),
                  shape.threads_per_block, max_blocks);

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads_per_block));
  config.stream = stream;
  return CudaStatus(
      cudaLaunchKernelEx(&config, kernel, incoming.data(), accumulator.data(),
                         plan.head, plan.vectors, accumulator.size()),
      "ReduceKernel launch");
}

template absl::Status Reduce(ReduceOp, DeviceSpan<const float>,
                             DeviceSpan<float>, cudaStream_t,
                             const ReduceShape&);
template absl::Status Reduce(ReduceOp, DeviceSpan<const __half>,
                             DeviceSpan<__half>, cudaStream_t,
                             const ReduceShape&);
template absl::Status Reduce(ReduceOp, DeviceSpan<const __nv_bfloat16>,
                             DeviceSpan<__nv_bfloat16>, cudaStream_t,
                             const ReduceShape&);

}  // namespace lockstep
