// The `threads` backend: the ranks of a group are threads of this process.
#ifndef LOCKSTEP_COLLECTIVES_HOST_THREAD_GROUP_H_
#define LOCKSTEP_COLLECTIVES_HOST_THREAD_GROUP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"

namespace lockstep {

// Creates a group of `world_size` ranks that share this process's memory;
// element r is rank r, to be used by one thread at a time. Destroying a
// communicator is leaving the group: the others' next call returns
// kUnavailable. Errors: kInvalidArgument for a world size outside
// [1, kMaxWorldSize], kResourceExhausted without memory.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_THREAD_GROUP_H_
