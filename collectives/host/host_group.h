// Groups of ranks on one host: the backends `threads` and `processes`.
#ifndef LOCKSTEP_COLLECTIVES_HOST_HOST_GROUP_H_
#define LOCKSTEP_COLLECTIVES_HOST_HOST_GROUP_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

// Creates a group of `world_size` ranks that share this process's memory;
// element r is rank r, to be used by one thread at a time. Destroying a
// communicator is leaving the group: the others' next call returns
// kUnavailable. Errors: kInvalidArgument for a world size outside
// [1, kMaxWorldSize], kResourceExhausted without memory.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options = {});

// Joins the group whose members meet at `rendezvous`, which names this
// process's rank; returns once all have joined. A rank that dies later is
// reported to those that wait for it, within 1 s. Errors: those of the
// rendezvous, and kUnavailable if a member died while joining.
absl::StatusOr<std::unique_ptr<Communicator>> JoinProcessGroup(
    Rendezvous& rendezvous, const GroupOptions& options = {});

// Calls `fn` on each rank of a new group of `world_size` threads, at the same
// time, and returns once all have returned. Each rank leaves the group as its
// `fn` returns, so the others learn at once of one that failed.
//
// Returns the error of the lowest rank that did not merely lose a peer
// (kUnavailable), else that of the lowest rank that did; CreateThreadGroup's
// errors; kResourceExhausted if a thread cannot be started.
absl::Status RunOnThreads(int world_size, const GroupOptions& options,
                          const std::function<absl::Status(Communicator&)>& fn);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_HOST_GROUP_H_
