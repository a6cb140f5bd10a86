// Joins the group of ranks that a launcher started on this host.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_JOIN_LAUNCHED_GROUP_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_JOIN_LAUNCHED_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {

// Joins the `processes` group of all ranks of `environment`, which
// ReadRankEnvironment() gives; they meet as launched_rendezvous.h says.
// Ranks that meet in a file may join several groups, all in the same order.
// Errors: kUnimplemented, naming the backends for that, if the ranks are on
// several hosts; those of OpenLaunchedRendezvous and of JoinProcessGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_JOIN_LAUNCHED_GROUP_H_
