// Joins the group of ranks that a launcher started on this host.
#ifndef LOCKSTEP_MODELS_JOIN_LAUNCHED_GROUP_H_
#define LOCKSTEP_MODELS_JOIN_LAUNCHED_GROUP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {

// Joins the process group of all ranks of `environment`. They meet in the file
// that LOCKSTEP_RENDEZVOUS names (our launcher sets it), else in the one of
// DerivedRendezvousPath, which rank 0 removes once all have joined. Errors:
// kUnimplemented if the ranks are on several hosts; kInvalidArgument if there
// is no path; those of the rendezvous and the group.
absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options);

// The path at which the ranks that another launcher started meet: in TMPDIR, or
// /tmp, a name made of the user and of what tells one run from another,
//
//   mpirun     PMIX_NAMESPACE
//   srun       SLURM_JOB_ID and SLURM_STEP_ID
//   torchrun   MASTER_ADDR and MASTER_PORT
//
// the first of these that is set. Errors: kInvalidArgument, asking for
// LOCKSTEP_RENDEZVOUS, if none is.
absl::StatusOr<std::string> DerivedRendezvousPath(EnvironmentLookup lookup);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_JOIN_LAUNCHED_GROUP_H_
