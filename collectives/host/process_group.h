// The `processes` backend: the ranks of a group are processes of one host that
// share anonymous memory, so nothing is left behind however they end.
#ifndef LOCKSTEP_COLLECTIVES_HOST_PROCESS_GROUP_H_
#define LOCKSTEP_COLLECTIVES_HOST_PROCESS_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

// Joins the group whose members meet at `rendezvous`, which names this
// process's rank; returns once all have joined. A rank that dies later is
// reported to those that wait for it, within 1 s. Errors: those of the
// rendezvous, and kUnavailable if a member died while joining.
absl::StatusOr<std::unique_ptr<Communicator>> JoinProcessGroup(
    Rendezvous& rendezvous, const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_PROCESS_GROUP_H_
