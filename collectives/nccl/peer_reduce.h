// Reductions directly from the memory of the other ranks, by NCCL's device API.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/collective.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#define LOCKSTEP_NCCL_WINDOWS 1
#include <nccl_device.h>

namespace lockstep {

// The most blocks of a kernel, each of which meets the same block of the other
// ranks.
#ifdef LOCKSTEP_CUDA_STANDIN
inline constexpr int kMaxWindowBlocks = 2;  // Their threads need stacks there.
#else
inline constexpr int kMaxWindowBlocks = 128;
#endif

// Returns the size of the window through which the ranks of a group
// synchronise. It is zeroed, and all ranks have registered it together.
constexpr int64_t MeetingBytes(int world_size) {
  return int64_t{kMaxWindowBlocks} * (world_size + 1) * sizeof(uint32_t);
}

struct WindowGroup {
  ncclWindow_t meeting = nullptr;
  int rank = 0;
  int world_size = 1;  // At most kMaxWindowRanks.
  // Pinned host memory. If not 0, the group has failed: kernels stop waiting,
  // and no longer access windows, which end with the communicator. A load of it
  // crosses PCIe, so one thread of a block loads it.
  const volatile int* aborted = nullptr;
};
inline constexpr int kMaxWindowRanks = 512;

// A place in a window, which the ranks registered together.
struct WindowPlace {
  ncclWindow_t window = nullptr;
  int64_t offset = 0;  // In bytes, the same on all ranks.
};

// Enqueues a valid AllReduce or ReduceScatter (collective.h), in the ring's
// order of additions (algorithms/schedule.h), in accumulators, rounded once:
// the bits of the CPU's Reduction (algorithms/reduction.h). The ranks must be
// able to access each other's memory, and each must make the call.
//
// input: where the call's input begins. output: where an AllReduce's output
// begins; not used by a ReduceScatter, whose output may be any memory of the
// rank. Both places are aligned to the call's elements. The output may be the
// input.
//
// One kernel. Each rank reduces different elements. Each block waits until the
// same block of every rank has started, so that the memory of all ranks is
// ready, and at its end until they have finished. Later work on `stream` may
// therefore change the input. Uses 16-byte vectors if input and output begin at
// the same offset within one. Cost: P reads of the ranks' memory per element,
// and one write, or P writes. Errors: kInvalidArgument for an unknown type or
// operation; CudaStatus's.
absl::Status ReduceFromWindows(const Collective& call, const WindowGroup& group,
                               const WindowPlace& input,
                               const WindowPlace& output, cudaStream_t stream);

// Loads the kernels, as LoadReduceKernels does.
absl::Status LoadWindowKernels();

}  // namespace lockstep

#endif  // NCCL 2.28

#endif  // LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_
