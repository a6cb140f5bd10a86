// A rank of the command `allreduce` on a GPU.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// Joins the NCCL group of a team of kNccl or kPlainNccl. The buffers are on GPU
// DeviceOfRank(local_rank), which becomes the calling thread's current device.
// Collective. `host`: a group of host memory with the same ranks, whose barrier
// precedes each turn; borrowed.
//
// A turn enqueues its calls on a stream, and the host does not wait between
// them. As many untimed calls precede them, so that the GPU is busy when the
// first timed call starts. A turn measures the time between an event before the
// first call and an event after the last, and the host's time until all calls
// have returned. Then the answers are copied to the host and checked there.
//
// Errors: kNotFound without a GPU; NcclCommunicator::Create's, CUDA's, NCCL's.
absl::StatusOr<std::unique_ptr<TurnTaker>> CreateNcclRank(Communicator& host,
                                                          const Team& team,
                                                          int local_rank);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_
