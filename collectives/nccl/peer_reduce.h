// Reductions straight from the memory of the other ranks, by NCCL's device API.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "collectives/collective.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#define LOCKSTEP_NCCL_WINDOWS 1
#include <nccl_device.h>

namespace lockstep {

// What the ranks of a group tell each other in device memory: a window of
// kMeetingBytes, zeroed, that all have registered together.
inline constexpr int64_t kMeetingBytes = 4096;

struct PeerGroup {
  ncclWindow_t meeting = nullptr;
  int rank = 0;
  int world_size = 1;  // At most kMostPeers.
  // Pinned host memory. Not 0: kernels do not wait any more, nor begin to touch
  // windows, which are gone with the communicator.
  const volatile int* aborted = nullptr;
};
inline constexpr int kMostPeers = 512;

// Which elements to reduce, and where. Of all ranks, which must reach each
// other's memory, elements lie at the same offset of a window that they
// registered together.
struct PeerReduction {
  ncclWindow_t input = nullptr;
  int64_t input_offset = 0;  // Bytes, a multiple of the element's size.
  // The result goes to this place of every rank, or else of this rank alone.
  ncclWindow_t output = nullptr;
  int64_t output_offset = 0;
  void* own_output = nullptr;
  int64_t count = 0;
  int first_rank = 0;  // The order of additions: this rank, the next one, ...
};

// Enqueues result[i] = x[first][i] op x[first + 1][i] op ..., ranks modulo P,
// in accumulators, rounded once: the bits of the CPU's Reduction
// (algorithms/reduction.h). Each rank reduces other elements, between two
// MeetPeers: the memory of all ranks must be ready before, and is free after.
// The output may be the input. In 16-byte vectors where input and output begin
// at the same place of one.
// Cost: P reads of peers' memory, and one write, or P, per element.
// Errors: kInvalidArgument for an unknown type or operation; CudaStatus's.
absl::Status ReduceFromPeers(ReduceOp op, DataType type, const PeerGroup& group,
                             const PeerReduction& reduction,
                             cudaStream_t stream);

// Enqueues a barrier: what comes later on `stream` comes after what all ranks
// had on theirs before.
absl::Status MeetPeers(const PeerGroup& group, cudaStream_t stream);

// Loads the kernels of both, as LoadReduceKernels.
absl::Status LoadPeerKernels();

}  // namespace lockstep

#endif  // NCCL 2.28

#endif  // LOCKSTEP_COLLECTIVES_NCCL_PEER_REDUCE_H_
