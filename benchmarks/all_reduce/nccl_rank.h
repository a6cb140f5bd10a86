// What a rank of the command `allreduce` does on a GPU.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// Joins the NCCL group of a team of kNccl or kPlainNccl, whose buffers are on
// GPU DeviceOfRank(local_rank), which becomes the calling thread's current one.
// Collective. `host`: a group of host memory with the same ranks, in which they
// meet before each turn; borrowed.
//
// A turn's calls follow one another on a stream without a wait of the host,
// behind as many that are not timed, so that the GPU is at work when the first
// comes: the time between an event before the first and one behind the last,
// and the host's time until all calls have returned. Then the answers are
// copied to the host, and checked there.
//
// Errors: kNotFound without a GPU, NcclCommunicator::Create's, CUDA's, NCCL's.
absl::StatusOr<std::unique_ptr<TurnTaker>> CreateNcclRank(Communicator& host,
                                                          const Team& team,
                                                          int local_rank);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_RANK_H_
