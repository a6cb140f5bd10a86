// Reads from the environment which rank of a launched run this process is.
#ifndef LOCKSTEP_COLLECTIVES_GROUPS_RANK_ENVIRONMENT_H_
#define LOCKSTEP_COLLECTIVES_GROUPS_RANK_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The program that started the ranks.
enum class RankLauncher {
  kLockstep,  // //collectives:launch.
  kTorchrun,
  kVariables,  // A script or a person that sets RANK and WORLD_SIZE.
  kOpenMpi,    // mpirun of Open MPI.
  kMpich,  // mpirun of MPICH and related MPIs, by their process manager Hydra.
  kSlurm,  // srun.
};

struct RankEnvironment {
  int rank = 0;        // In [0, world_size).
  int world_size = 1;  // At least 1.
  int local_rank = 0;  // Its number among the ranks of this host.
  // The number of ranks on this host; at most world_size.
  int local_world_size = 1;
  // The path of the rendezvous file; "" if not set.
  std::string rendezvous = {};
  RankLauncher launcher = RankLauncher::kVariables;

  // Returns whether all ranks of the run are on this host.
  bool is_on_one_host() const { return local_world_size == world_size; }
};

// Returns the value of the named variable, or nullopt if it is not set.
using EnvironmentLookup =
    absl::FunctionRef<std::optional<std::string>(absl::string_view name)>;

// Looks up a variable in the environment of this process.
std::optional<std::string> LookUpProcessEnvironment(absl::string_view name);

// Reads the variables of the first of these launchers that has set its own:
//
//   our own and torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   mpirun (Open MPI)     OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK,
//                         ..._LOCAL_SIZE
//   mpirun (MPICH)        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   srun (Slurm)          SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS
//                         or SLURM_NTASKS, and the rank's share of
//                         SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE or
//                         SLURM_NTASKS_PER_NODE, whichever is set first
//
// The path of the rendezvous file comes from LOCKSTEP_RENDEZVOUS. The order is
// the order in which launchers start each other: srun starts torchrun, not the
// other way round. PMI_RANK without MPI_LOCALRANKID is srun's if Slurm's
// variables hold the same numbers. Returns nullopt if no launcher started this
// process. A shell inside a Slurm allocation is such a process: it has no
// SLURM_STEP_ID, or the step number of a shell.
//
// If no variable says how many ranks are on this host, all ranks are taken to
// be on one host.
//
// Errors: kInvalidArgument, one line naming the variable and its value, if a
// value is not a number or out of range, if only one of rank and size is set,
// or if variables contradict each other.
absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment();

// Reads the same from any source of variables.
absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment(
    EnvironmentLookup lookup);

// Reads the environment for programs that only run as a rank. Errors:
// kFailedPrecondition if no launcher started this process; those of
// ReadRankEnvironment.
absl::StatusOr<RankEnvironment> RequireRankEnvironment();

// Checks that no launcher started this process. For commands that start their
// ranks themselves: under mpirun or torchrun every rank would start ranks of
// its own. Errors: kFailedPrecondition if a launcher started this process;
// those of ReadRankEnvironment.
absl::Status CheckNotLaunched();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUPS_RANK_ENVIRONMENT_H_
