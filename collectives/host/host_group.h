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

// Creates a group of `world_size` ranks that share this process's memory.
// Element r is rank r; one thread at a time may use it. A rank leaves the group
// when its communicator is destroyed: the next call of the others returns
// kUnavailable. Errors: kInvalidArgument for a world size outside [1,
// kMaxWorldSize], kResourceExhausted without memory.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options = {});

// Joins the group whose members meet at `rendezvous`, which names this
// process's rank. Returns once all have joined. If a rank dies later, the ranks
// that wait for it get an error within 1 s. Errors: those of the rendezvous,
// and kUnavailable if a member died while joining.
absl::StatusOr<std::unique_ptr<Communicator>> JoinProcessGroup(
    Rendezvous& rendezvous, const GroupOptions& options = {});

// Calls `fn` on each rank of a new group of `world_size` threads, at the same
// time. Returns once all have returned. Each rank leaves the group when its
// `fn` returns, so the others see a failed rank at once.
//
// Returns the error of the lowest rank whose error is not kUnavailable (the
// loss of another rank). If all errors are kUnavailable, returns the lowest
// rank's. Other errors: CreateThreadGroup's; kResourceExhausted if a thread
// cannot be started.
absl::Status RunOnThreads(int world_size, const GroupOptions& options,
                          const std::function<absl::Status(Communicator&)>& fn);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_HOST_GROUP_H_
