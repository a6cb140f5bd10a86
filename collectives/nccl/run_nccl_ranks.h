// Runs a function on every rank of a new NCCL group, for tests with and without
// GPUs.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/nccl/nccl_communicator.h"

namespace lockstep {

// A rank's, which the options do not say: device. On the stand-in ranks are
// threads, with a device each; on GPUs they are processes, dealt out to the
// devices that there are.
using NcclRankFunction = std::function<absl::Status(NcclCommunicator&)>;

// Returns what `fn` returned on each rank, in rank order, or what kept the rank
// from being one: kNotFound where there is no GPU. control_timeout: of the host
// group beside.
std::vector<absl::Status> RunNcclRanks(
    int world_size, const NcclOptions& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

// The same with each rank's own options, device included.
std::vector<absl::Status> RunNcclRanks(
    const std::vector<NcclOptions>& options, const NcclRankFunction& fn,
    absl::Duration control_timeout = absl::Seconds(20));

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_RUN_NCCL_RANKS_H_
