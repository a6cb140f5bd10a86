// Element-wise reduction of device memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/nccl/reduce.h"

namespace lockstep {
namespace {

constexpr int64_t kVectorBytes = 16;  // The widest load and store there is.

// A multiprocessor holds 2048 threads; eight blocks of 256 keep more loads in
// flight than memory needs to be busy.
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kThreadsPerBlock = 256;

// kSize elements that are loaded and stored at once.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T elements[kSize];
};

// Elements in 16 bytes of the widest of the three types.
template <typename E, typename T, typename R>
constexpr int kVectorSize = kVectorBytes /
                            std::max({sizeof(E), sizeof(T), sizeof(R)});

// A is the accumulator's type.
template <typename A, typename T>
__device__ inline A Load(T x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(x);
  } else {
    return static_cast<A>(x);
  }
}

template <typename A, typename T>
__device__ inline void Store(A x, T& to) {
  if constexpr (std::is_same_v<T, __half>) {
    to = __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    to = __float2bfloat16_rn(x);
  } else {
    to = static_cast<T>(x);
  }
}

// Integers wrap, so they are computed without a sign.
template <typename A, bool kIsInteger = std::is_integral_v<A>>
struct Arithmetic {
  using Type = A;
};
template <typename A>
struct Arithmetic<A, true> {
  // Of at least 32 bits, since narrower ones would become int.
  using Type = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
};

template <ReduceOp op, typename A>
__device__ inline A Combine(A a, A b) {
  using U = typename Arithmetic<A>::Type;
  if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kProduct) {
    return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    // A NaN is the one value that differs from itself.
    if (a != a) return a;
    if (b != b) return b;
    if constexpr (op == ReduceOp::kMin) return b < a ? b : a;
    return a < b ? b : a;
  }
}

template <ReduceOp op, typename A, typename E, typename T, typename R>
__device__ inline void ReduceOne(E earlier, T input, R& result, int divisor) {
  A value = Combine<op>(Load<A>(earlier), Load<A>(input));
  if constexpr (op == ReduceOp::kAverage) {
    if (divisor > 1) value = value / static_cast<A>(divisor);
  }
  Store(value, result);
}

// The elements are `head` single ones, `vectors` vectors, and single ones up to
// `size`. Threads stride over the vectors, then over the single elements as if
// head and tail were one range. The result may be one of the operands: each
// element is read before it is written, by the same thread.
template <ReduceOp op, typename A, typename E, typename T, typename R>
__global__ void ReduceKernel(const E* earlier, const T* input, R* result,
                             int64_t head, int64_t vectors, int64_t size,
                             int divisor) {
  constexpr int kSize = kVectorSize<E, T, R>;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;

  const auto* const a =
      reinterpret_cast<const Vector<E, kSize>*>(earlier + head);
  const auto* const b = reinterpret_cast<const Vector<T, kSize>*>(input + head);
  auto* const out = reinterpret_cast<Vector<R, kSize>*>(result + head);
  for (int64_t i = first; i < vectors; i += step) {
    const Vector<E, kSize> x = a[i];
    const Vector<T, kSize> y = b[i];
    Vector<R, kSize> z;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      ReduceOne<op, A>(x.elements[k], y.elements[k], z.elements[k], divisor);
    }
    out[i] = z;
  }

  for (int64_t i = first; i < size - vectors * kSize; i += step) {
    const int64_t place = i < head ? i : i + vectors * kSize;
    ReduceOne<op, A>(earlier[place], input[place], result[place], divisor);
  }
}

uintptr_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

bool IsAligned(const ConstBuffer& buffer) {
  return Address(buffer.data) % SizeOf(buffer.type) == 0;
}

// Whether the result is elsewhere than the operand, or in its very place.
bool IsApart(const Buffer& result, const ConstBuffer& operand) {
  if (result.data == operand.data && result.type == operand.type) return true;
  return Address(result.data) + result.size_bytes() <= Address(operand.data) ||
         Address(operand.data) + operand.size_bytes() <= Address(result.data);
}

absl::Status Wrong(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("Reduce: ", why));
}

absl::Status CheckMemory(ReduceOp op, const ConstBuffer& earlier,
                         const ConstBuffer& input, const Buffer& result) {
  const DataType accumulator = AccumulatorOf(input.type, op);
  for (const DataType type : {earlier.type, result.type}) {
    if (type == input.type || type == accumulator) continue;
    return Wrong(absl::StrCat(Name(input.type), " with partial results in ",
                              Name(type), ", not ", Name(accumulator)));
  }
  if (earlier.count != input.count || result.count != input.count ||
      input.count < 0) {
    return Wrong(absl::StrCat(earlier.count, " earlier elements, ", input.count,
                              " of input, ", result.count, " of result"));
  }
  if (!IsAligned(earlier) || !IsAligned(input) || !IsAligned(result)) {
    return Wrong("memory is not aligned to its elements");
  }
  if (!IsApart(result, earlier) || !IsApart(result, input)) {
    return Wrong("operands and result overlap");
  }
  return absl::OkStatus();
}

// What a launch is made from.
struct Launch {
  ConstBuffer earlier;
  ConstBuffer input;
  Buffer result;
  int divisor;
  cudaStream_t stream;
  int64_t max_blocks;
};

// How the elements are cut (see ReduceKernel) and spread over threads.
struct Plan {
  int64_t head = 0;
  int64_t vectors = 0;
  int64_t blocks = 0;
};

// Elements past a boundary of vectors.
int64_t PastBoundary(const ConstBuffer& buffer, int64_t vector_size) {
  return static_cast<int64_t>(Address(buffer.data)) / SizeOf(buffer.type) %
         vector_size;
}

Plan MakePlan(const Launch& launch, int64_t vector_size) {
  const int64_t size = launch.input.count;
  const int64_t past = PastBoundary(launch.input, vector_size);
  Plan plan;
  if (PastBoundary(launch.earlier, vector_size) == past &&
      PastBoundary(launch.result, vector_size) == past) {
    plan.head = std::min(size, (vector_size - past) % vector_size);
    plan.vectors = (size - plan.head) / vector_size;
  }
  const int64_t wanted =
      std::max(plan.vectors, size - plan.vectors * vector_size);
  plan.blocks = std::min(launch.max_blocks,
                         (wanted + kThreadsPerBlock - 1) / kThreadsPerBlock);
  return plan;
}

// Sets `blocks` to what fills the current device.
absl::Status MaxBlocks(int64_t& blocks) {
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

template <ReduceOp op, typename A, typename E, typename T, typename R>
absl::Status LaunchKernel(const Launch& launch) {
  const Plan plan = MakePlan(launch, kVectorSize<E, T, R>);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(kThreadsPerBlock);
  config.stream = launch.stream;
  return CudaStatus(
      cudaLaunchKernelEx(&config, ReduceKernel<op, A, E, T, R>,
                         static_cast<const E*>(launch.earlier.data),
                         static_cast<const T*>(launch.input.data),
                         static_cast<R*>(launch.result.data), plan.head,
                         plan.vectors, launch.input.count, launch.divisor),
      "ReduceKernel launch");
}

// By which of the operand and the result are accumulators.
template <ReduceOp op, typename A, typename T>
absl::Status LaunchAccumulating(const Launch& launch) {
  if constexpr (std::is_same_v<A, T>) {
    return LaunchKernel<op, A, T, T, T>(launch);
  } else {
    const bool from_elements = launch.earlier.type == launch.input.type;
    if (launch.result.type == launch.input.type) {
      return from_elements ? LaunchKernel<op, A, T, T, T>(launch)
                           : LaunchKernel<op, A, A, T, T>(launch);
    }
    return from_elements ? LaunchKernel<op, A, T, T, A>(launch)
                         : LaunchKernel<op, A, A, T, A>(launch);
  }
}

// A: the accumulator of every operation but kAverage; M: of kAverage.
template <typename T, typename A = T, typename M = A>
absl::Status LaunchOp(ReduceOp op, const Launch& launch) {
  switch (op) {
    case ReduceOp::kSum:
      return LaunchAccumulating<ReduceOp::kSum, A, T>(launch);
    case ReduceOp::kProduct:
      return LaunchAccumulating<ReduceOp::kProduct, A, T>(launch);
    case ReduceOp::kMin:
      return LaunchAccumulating<ReduceOp::kMin, A, T>(launch);
    case ReduceOp::kMax:
      return LaunchAccumulating<ReduceOp::kMax, A, T>(launch);
    case ReduceOp::kAverage:
      return LaunchAccumulating<ReduceOp::kAverage, M, T>(launch);
  }
  return Wrong(absl::StrCat("no operation ", static_cast<int>(op)));
}

absl::Status LaunchType(ReduceOp op, const Launch& launch) {
  switch (launch.input.type) {
    case DataType::kFloat64:
      return LaunchOp<double>(op, launch);
    case DataType::kFloat32:
      return LaunchOp<float>(op, launch);
    case DataType::kFloat16:
      return LaunchOp<__half, float>(op, launch);
    case DataType::kBFloat16:
      return LaunchOp<__nv_bfloat16, float>(op, launch);
    case DataType::kInt32:
      return LaunchOp<int32_t, int32_t, int64_t>(op, launch);
    case DataType::kInt64:
      return LaunchOp<int64_t>(op, launch);
    case DataType::kUInt8:
      return LaunchOp<uint8_t, uint8_t, int64_t>(op, launch);
  }
  return Wrong(absl::StrCat("no type ", static_cast<int>(launch.input.type)));
}

}  // namespace

absl::Status Reduce(ReduceOp op, ConstBuffer earlier, ConstBuffer input,
                    Buffer result, int divisor, cudaStream_t stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMemory(op, earlier, input, result));
  if (divisor < 1 || (divisor > 1 && op != ReduceOp::kAverage)) {
    return Wrong(absl::StrCat("a divisor of ", divisor, " for ", Name(op)));
  }
  if (input.count == 0) return absl::OkStatus();
  int64_t max_blocks = 0;
  LOCKSTEP_RETURN_IF_ERROR(MaxBlocks(max_blocks));
  return LaunchType(op, {earlier, input, result, divisor, stream, max_blocks});
}

}  // namespace lockstep
