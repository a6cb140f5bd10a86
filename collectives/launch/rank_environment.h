// Which rank of a launched run this process is, as its environment says.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_ENVIRONMENT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Who started the ranks.
enum class RankLauncher {
  kLockstep,  // //collectives:launch.
  kTorchrun,
  kVariables,  // Somebody who sets RANK and WORLD_SIZE: a script, a person.
  kOpenMpi,    // mpirun of Open MPI.
  kMpich,      // mpirun of MPICH and its kin, by its process manager Hydra.
  kSlurm,      // srun.
};

struct RankEnvironment {
  int rank = 0;                 // In [0, world_size).
  int world_size = 1;           // At least 1.
  int local_rank = 0;           // Among the ranks of this host.
  int local_world_size = 1;     // Ranks on this host; at most world_size.
  std::string rendezvous = {};  // Path of the rendezvous file; "" if not given.
  RankLauncher launcher = RankLauncher::kVariables;
};

// Returns the value of the named variable, or nullopt if it is not set.
using EnvironmentLookup =
    absl::FunctionRef<std::optional<std::string>(absl::string_view name)>;

// The environment of this process.
std::optional<std::string> LookUpProcessEnvironment(absl::string_view name);

// Reads what the first of these launchers that shows itself has set:
//
//   our own and torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   mpirun (Open MPI)     OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK,
//                         ..._LOCAL_SIZE
//   mpirun (MPICH)        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   srun (Slurm)          SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS
//                         or SLURM_NTASKS, and the rank's share of
//                         SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE or
//                         SLURM_NTASKS_PER_NODE, whichever is first
//
// and the path of the rendezvous file from LOCKSTEP_RENDEZVOUS. The order is
// that in which launchers start each other: torchrun under srun, not the other
// way round. PMI_RANK without MPI_LOCALRANKID is srun's if Slurm's variables
// say the same. Returns nullopt if no launcher started this process: so for a
// shell inside a Slurm allocation, which has no SLURM_STEP_ID or that of no
// srun.
//
// Where nothing is said of hosts, all ranks are taken to be on one.
//
// Errors: kInvalidArgument, one line naming the variable and its value, if a
// value is not a number or out of range, if one of rank and size is missing,
// and for variables that contradict each other.
absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment();

// The same from any source of variables.
absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment(
    EnvironmentLookup lookup);

// For programs that only run as a rank. Errors: kFailedPrecondition if no
// launcher started this process; those of ReadRankEnvironment.
absl::StatusOr<RankEnvironment> RequireRankEnvironment();

// For commands that start their ranks themselves: under mpirun or torchrun
// every rank would be a driver of its own. Errors: kFailedPrecondition if a
// launcher started this process; those of ReadRankEnvironment.
absl::Status CheckNotLaunched();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_ENVIRONMENT_H_
