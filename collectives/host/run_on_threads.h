// Ranks that are threads, from their start to their end.
#ifndef LOCKSTEP_COLLECTIVES_HOST_RUN_ON_THREADS_H_
#define LOCKSTEP_COLLECTIVES_HOST_RUN_ON_THREADS_H_

#include <functional>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"

namespace lockstep {

// Calls `fn` on each rank of a new group of `world_size` threads, at the same
// time, and returns once all have returned. Each rank leaves the group as its
// `fn` returns, so the others learn at once of one that failed.
//
// Returns the error of the lowest rank that did not merely lose a peer
// (kUnavailable), else that of the lowest rank that did; CreateThreadGroup's
// errors.
absl::Status RunOnThreads(int world_size, const GroupOptions& options,
                          const std::function<absl::Status(Communicator&)>& fn);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_RUN_ON_THREADS_H_
