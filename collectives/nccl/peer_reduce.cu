#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/peer_reduce.h"
#include "collectives/nccl/reduce_arithmetic.h"

#ifdef LOCKSTEP_NCCL_WINDOWS

namespace lockstep {
namespace {

// A link between GPUs carries 450 GB/s with some microseconds of latency. Each
// thread loads a vector from several ranks at once. On the stand-in each thread
// of a block that waits needs a stack.
#ifdef LOCKSTEP_CUDA_STANDIN
constexpr int kThreadsPerBlock = 32;
#else
constexpr int kThreadsPerBlock = 256;
#endif

// How often a thread polls for the other ranks before it polls whether the
// group has failed. That flag is in host memory, which takes longer to read.
constexpr int kPollsPerFailureCheck = 64;

// The elements that a rank reduces, and their location.
struct WindowReduction {
  ncclWindow_t input = nullptr;
  int64_t input_offset = 0;  // In bytes, a multiple of the element's size.
  // The result is written to this place of every rank; if `output` is null,
  // only to own_output of this rank.
  ncclWindow_t output = nullptr;
  int64_t output_offset = 0;
  void* own_output = nullptr;
  int64_t count = 0;          // Of this rank; it may be 0.
  int64_t largest_count = 0;  // Of all ranks; more than 0.
  int first_rank = 0;         // The first rank in the order of additions.
};

template <typename T>
__device__ inline T* PeerData(ncclWindow_t window, int64_t offset, int peer) {
  return static_cast<T*>(
      ncclGetLsaPointer(window, static_cast<size_t>(offset), peer));
}

// A rank's part of the meeting window is an array of words. For each block, it
// has the turn that the same block of each rank has reached. After these, it
// has for each block the turn that this rank's block has passed. Turns are
// counted in device memory, so that the kernel can be part of a graph, and wrap
// around.
__device__ inline uint32_t* TurnsIn(const WindowGroup& group, int peer) {
  return PeerData<uint32_t>(group.meeting, 0, peer) +
         static_cast<int>(blockIdx.x) * group.world_size;
}
__device__ inline uint32_t* PassedTurn(const WindowGroup& group) {
  return PeerData<uint32_t>(group.meeting, 0, group.rank) +
         kMaxWindowBlocks * group.world_size + blockIdx.x;
}

// Returns whether the group has failed, which the host sets.
__device__ inline bool HasFailed(const WindowGroup& group) {
#ifdef LOCKSTEP_CUDA_STANDIN
  return standin::LoadPinned(group.aborted) != 0;
#else
  return *group.aborted != 0;
#endif
}

// Blocks the thread until `has_come`, which reads memory that other ranks
// write, returns true.
template <typename HasCome>
__device__ inline void WaitUntil(HasCome has_come) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::WaitForMemory(has_come, {__FILE__, __LINE__});
#else
  while (!has_come()) {
  }
#endif
}

// Reduces vector number `i` of kSize elements of type T.
template <ReduceOp op, typename A, typename T, int kSize>
__device__ inline void ReduceVector(const WindowReduction& r, int world_size,
                                    int64_t offset, int64_t i) {
  using Elements = Vector<T, kSize>;
  const auto elements_of = [&](int n) {
    const int rank = r.first_rank + n;
    return PeerData<const Elements>(
        r.input, r.input_offset + offset,
        rank < world_size ? rank : rank - world_size)[i];
  };
  const Elements first = elements_of(0);
  A sum[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) sum[k] = Load<A>(first.elements[k]);
#pragma unroll 4
  for (int n = 1; n < world_size; ++n) {
    const Elements x = elements_of(n);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      sum[k] = Combine<op>(sum[k], Load<A>(x.elements[k]));
    }
  }
  Elements result;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    Store(Divide<op>(sum[k], world_size), result.elements[k]);
  }
  if (r.output == nullptr) {
    reinterpret_cast<Elements*>(static_cast<char*>(r.own_output) + offset)[i] =
        result;
    return;
  }
  for (int n = 0; n < world_size; ++n) {
    PeerData<Elements>(r.output, r.output_offset + offset, n)[i] = result;
  }
}

// Returns whether every `step`-th rank from `first` on has reached the turn.
__device__ inline bool HaveReached(const volatile uint32_t* turns,
                                   uint32_t turn, int first, int step,
                                   int world_size) {
  for (int peer = first; peer < world_size; peer += step) {
    if (static_cast<int32_t>(turns[peer] - turn) < 0) return false;
  }
  return true;
}

// The block meets the same block of all ranks: each writes its turn to every
// rank's memory, and waits until all ranks have written to its own. Memory that
// the ranks wrote before is then visible. Returns false, for all threads, if
// the group has failed. All threads of the block must call it. kIsFirst:
// whether it is the kernel's first meeting, after which windows are used.
template <bool kIsFirst>
__device__ inline bool Meet(const WindowGroup& group, uint32_t turn) {
  // On the stand-in other blocks may change it during the wait, but only to
  // true once the group has failed.
  __shared__ bool has_failed;
  if (threadIdx.x == 0) has_failed = kIsFirst && HasFailed(group);
  __threadfence_system();  // This thread's writes precede the turn.
  __syncthreads();
  if (has_failed) return false;
  for (int peer = threadIdx.x; peer < group.world_size; peer += blockDim.x) {
    volatile uint32_t* const noted = TurnsIn(group, peer) + group.rank;
    *noted = turn;
  }
  __syncthreads();  // Every thread has read has_failed.
  const volatile uint32_t* const turns = TurnsIn(group, group.rank);
  const auto first = static_cast<int>(threadIdx.x);
  const auto step = static_cast<int>(blockDim.x);
  bool stops = false;
  WaitUntil([&, looks = 0]() mutable {
    if (HaveReached(turns, turn, first, step, group.world_size)) return true;
    stops = stops || (++looks % kPollsPerFailureCheck == 0 && HasFailed(group));
    return stops;
  });
  if (stops) has_failed = true;
  __threadfence_system();  // Shows other ranks' writes before their turns.
  __syncthreads();
  return !has_failed;
}

// Reduces the elements, divided as in ElementPlan, between two meetings.
template <ReduceOp op, typename A, typename T>
__global__ void __launch_bounds__(kThreadsPerBlock, 1)
    PeerReduceKernel(WindowGroup group, WindowReduction r, int64_t head,
                     int64_t vectors) {
  const uint32_t turn = *PassedTurn(group);
  if (!Meet<true>(group, turn + 1)) return;
  constexpr int kSize = kElementsPerVector<T>;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t head_bytes = head * int64_t{sizeof(T)};
  for (int64_t i = first; i < vectors; i += step) {
    ReduceVector<op, A, T, kSize>(r, group.world_size, head_bytes, i);
  }
  for (int64_t i = first; i < r.count - vectors * kSize; i += step) {
    ReduceVector<op, A, T, 1>(r, group.world_size, 0,
                              i < head ? i : i + vectors * kSize);
  }
  if (Meet<false>(group, turn + 2) && threadIdx.x == 0) {
    *PassedTurn(group) = turn + 2;
  }
}

template <ReduceOp op, typename A, typename T>
absl::Status Launch(const WindowGroup& group, const WindowReduction& reduction,
                    cudaStream_t stream) {
  constexpr int64_t kSize = kElementsPerVector<T>;
  const auto past = [](int64_t address) {
    return address / int64_t{sizeof(T)} % kSize;
  };
  // Windows begin at a multiple of 16.
  const int64_t input_past = past(reduction.input_offset);
  const int64_t output_past =
      past(reduction.output == nullptr
               ? reinterpret_cast<intptr_t>(reduction.own_output)
               : reduction.output_offset);
  const ElementPlan plan = PlanElements(
      reduction.count, kSize,
      input_past == output_past ? std::optional(input_past) : std::nullopt,
      kThreadsPerBlock, kMaxWindowBlocks);
  // Every rank has the same number of blocks.
  const ElementPlan largest = PlanElements(reduction.largest_count, kSize, 0,
                                           kThreadsPerBlock, kMaxWindowBlocks);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(largest.blocks));
  config.blockDim = dim3(kThreadsPerBlock);
  config.stream = stream;
  return CudaStatus(
      cudaLaunchKernelEx(&config, PeerReduceKernel<op, A, T>, group, reduction,
                         plan.head, plan.vectors),
      "PeerReduceKernel launch");
}

WindowReduction ReductionOf(const Collective& call, const WindowGroup& group,
                            const WindowPlace& input,
                            const WindowPlace& output) {
  const int ranks = group.world_size;
  const bool to_all = call.operation == Operation::kAllReduce;
  const int segment = to_all ? CompletedSegment(group.rank, ranks) : group.rank;
  const Segment own = SegmentOf(call.input.count, ranks, segment);
  const int64_t begin = own.begin * SizeOf(call.input.type);
  WindowReduction reduction = {
      .input = input.window,
      .input_offset = input.offset + begin,
      .own_output = call.output.data,
      .count = own.count,
      // The first segments are the largest.
      .largest_count = SegmentOf(call.input.count, ranks, 0).count,
      // The sum of a ReduceScatter segment starts one rank later (schedule.h).
      .first_rank = to_all ? segment : (segment + 1) % ranks};
  if (to_all) {
    reduction.output = output.window;
    reduction.output_offset = output.offset + begin;
  }
  return reduction;
}

}  // namespace

absl::Status ReduceFromWindows(const Collective& call, const WindowGroup& group,
                               const WindowPlace& input,
                               const WindowPlace& output, cudaStream_t stream) {
  const WindowReduction reduction = ReductionOf(call, group, input, output);
  return WithReduction(call.input.type, call.op,
                       [&]<ReduceOp op, typename A, typename T>() {
                         return Launch<op, A, T>(group, reduction, stream);
                       });
}

absl::Status LoadWindowKernels() {
  for (const DataType type : kAllDataTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      LOCKSTEP_RETURN_IF_ERROR(
          WithReduction(type, op, [&]<ReduceOp o, typename A, typename T>() {
            return LoadKernels(PeerReduceKernel<o, A, T>);
          }));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep

#endif  // LOCKSTEP_NCCL_WINDOWS
