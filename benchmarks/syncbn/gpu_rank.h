// Ranks of `syncbn --backend=nccl`, if this program can have them.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_GPU_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_GPU_RANK_H_

#include <string>

#include "absl/status/status.h"
#include "benchmarks/syncbn/rank.h"

namespace lockstep::benchmarks {

// Error: kFailedPrecondition, in one line, if this program was built without
// CUDA, NCCL and cuDNN, or if there is no GPU here.
absl::Status CheckGpu();

// Is the rank that the launcher says, on a GPU, and takes turns until the
// driver that listens at `listener` says that it is over. Errors: of CheckGpu,
// of the groups, of a turn.
absl::Status RunSyncBnGpuRank(const std::string& listener,
                              const SyncBnRankOptions& options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_GPU_RANK_H_
