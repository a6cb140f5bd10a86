// Element-wise reduction of device memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/nccl/reduce.h"
#include "collectives/nccl/reduce_arithmetic.h"

namespace lockstep {
namespace {

// Half of a multiprocessor's threads keep memory busy, since each thread has
// two loads of each operand in flight. The other half is left to NCCL's blocks,
// which run at the same time.
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kMostBlocks = 192;
constexpr int kThreadsPerBlock = 256;
constexpr int kUnroll = 2;

template <ReduceOp op, typename A, typename E, typename T, typename R>
__device__ inline void ReduceOne(E earlier, T input, R& result, int divisor) {
  const A value = Combine<op>(Load<A>(earlier), Load<A>(input));
  Store(Divide<op>(value, divisor), result);
}

// Reduces the elements, divided as in ElementPlan. The result may be one of the
// operands: the same thread reads each element before it writes it.
template <ReduceOp op, typename A, typename E, typename T, typename R>
__global__ void __launch_bounds__(kThreadsPerBlock, 1)
    ReduceKernel(const E* earlier, const T* input, R* result, int64_t head,
                 int64_t vectors, int64_t size, int divisor) {
  constexpr int kSize = kElementsPerVector<E, T, R>;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;

  const auto* const a =
      reinterpret_cast<const Vector<E, kSize>*>(earlier + head);
  const auto* const b = reinterpret_cast<const Vector<T, kSize>*>(input + head);
  auto* const out = reinterpret_cast<Vector<R, kSize>*>(result + head);
  for (int64_t i = first; i < vectors; i += kUnroll * step) {
    Vector<E, kSize> x[kUnroll];
    Vector<T, kSize> y[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step >= vectors) break;
      x[u] = a[i + u * step];
      y[u] = b[i + u * step];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step >= vectors) break;
      Vector<R, kSize> z;
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        ReduceOne<op, A>(x[u].elements[k], y[u].elements[k], z.elements[k],
                         divisor);
      }
      out[i + u * step] = z;
    }
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

// Returns whether the result does not overlap the operand, or is exactly in its
// place.
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

// The arguments of a launch.
struct Launch {
  ConstBuffer earlier;
  ConstBuffer input;
  Buffer result;
  int divisor;
  cudaStream_t stream;
  int64_t max_blocks;
  bool only_load;  // Loads the kernel without running it.
};

// Returns the number of elements past a vector boundary.
int64_t PastBoundary(const ConstBuffer& buffer, int64_t vector_size) {
  return static_cast<int64_t>(Address(buffer.data)) / SizeOf(buffer.type) %
         vector_size;
}

ElementPlan PlanOf(const Launch& launch, int64_t vector_size) {
  std::optional<int64_t> past = PastBoundary(launch.input, vector_size);
  if (PastBoundary(launch.earlier, vector_size) != *past ||
      PastBoundary(launch.result, vector_size) != *past) {
    past = std::nullopt;
  }
  return PlanElements(launch.input.count, vector_size, past, kThreadsPerBlock,
                      launch.max_blocks);
}

// Sets `blocks` to the number of blocks that fill the current device.
absl::Status MaxBlocks(int64_t& blocks) {
  int device = 0;
  int multiprocessors = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  blocks = std::min<int64_t>(
      kMostBlocks, int64_t{kBlocksPerMultiprocessor} * multiprocessors);
  return absl::OkStatus();
}

template <ReduceOp op, typename A, typename E, typename T, typename R>
absl::Status LaunchKernel(const Launch& launch) {
  const auto kernel = ReduceKernel<op, A, E, T, R>;
  if (launch.only_load) return LoadKernels(kernel);
  const ElementPlan plan = PlanOf(launch, kElementsPerVector<E, T, R>);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(kThreadsPerBlock);
  config.stream = launch.stream;
  return CudaStatus(
      cudaLaunchKernelEx(&config, kernel,
                         static_cast<const E*>(launch.earlier.data),
                         static_cast<const T*>(launch.input.data),
                         static_cast<R*>(launch.result.data), plan.head,
                         plan.vectors, launch.input.count, launch.divisor),
      "ReduceKernel launch");
}

// Selects the kernel by whether the operand and the result are accumulators.
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

absl::Status LaunchType(ReduceOp op, const Launch& launch) {
  return WithReduction(launch.input.type, op,
                       [&]<ReduceOp o, typename A, typename T>() {
                         return LaunchAccumulating<o, A, T>(launch);
                       });
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
  return LaunchType(op, {earlier, input, result, divisor, stream, max_blocks,
                         /*only_load=*/false});
}

absl::Status LoadReduceKernels() {
  for (const DataType type : kAllDataTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      const DataType accumulator = AccumulatorOf(type, op);
      for (const DataType earlier : {type, accumulator}) {
        for (const DataType result : {type, accumulator}) {
          Launch launch = {};
          launch.earlier.type = earlier;
          launch.input.type = type;
          launch.result.type = result;
          launch.only_load = true;
          LOCKSTEP_RETURN_IF_ERROR(LaunchType(op, launch));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
