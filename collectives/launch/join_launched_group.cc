// A rendezvous, and the group that meets there.
#include "collectives/launch/join_launched_group.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/process_group.h"
#include "collectives/launch/launched_rendezvous.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options) {
  if (environment.local_world_size != environment.world_size) {
    return absl::UnimplementedError(absl::StrCat(
        "of ", environment.world_size, " ranks only ",
        environment.local_world_size,
        " are on this host, and shared memory ends there: use the mpi or the "
        "nccl backend for several hosts"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenLaunchedRendezvous(environment, options.timeout));
  return JoinProcessGroup(*rendezvous, options);
}

}  // namespace lockstep
