// What a process that the command `allreduce` has started does.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANK_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANK_H_

#include <string>

#include "absl/status/status.h"
#include "benchmarks/all_reduce_plan.h"

namespace lockstep {

// Is a rank of `team` (kProcesses: the one that the launcher says; kThreads:
// all of them) or the copier (kCopy), and takes turns until the driver that
// listens at `listener` says that it is over. Errors: of the group, of a turn.
absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANK_H_
