// The ranks of a run: how they are started, and the driver's view of them.
// PyTorch's DistributedDataParallel is a peer.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_TEAMS_H_
#define LOCKSTEP_BENCHMARKS_SCALING_TEAMS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/turn.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"

namespace lockstep::benchmarks {

// The settings with which the driver starts ranks.
struct RankLaunchSettings {
  std::vector<std::string> flags = {};  // The flags of this program.
  std::string mpi_folder = {};          // The folder of MpirunCommand.
  int cores = 1;                        // The number that the ranks may use.
  // The Pythons that kDdp tries in turn, and the network's input for kDdp.
  std::vector<std::string> pythons = {};
  NetworkInput input = {};
};

// Returns the path of the program whose processes are ranks. For MPI that is
// scaling_mpi, in the same folder, because only scaling_mpi needs MPI's
// library. Otherwise it is this program. Error: kInvalidArgument, naming
// --backend, if scaling_mpi was not built.
absl::StatusOr<std::string> ProgramOf(RankKind ranks);

// Returns the command that starts the ranks of a run: one process for each
// rank, one process with a thread for each rank, or mpirun. The command's flags
// are those of `setting`, then --worker, --backend and --world_sizes. The
// program must call ServeRun.
TeamCommand CommandOf(const RankLaunchSettings& setting, const RunSpec& spec,
                      const std::string& program, const std::string& listener);

// Starts the ranks, has them run `spec`, and combines their results. The caller
// must have only one thread. Errors: ProgramOf's; RankTeam's, which name the
// rank; CombineRanks's; for kDdp, RunDdpOnce's.
absl::StatusOr<RoundSample> RunOnce(const RankLaunchSettings& setting,
                                    const RunSpec& spec);

// Checks that PyTorch can train the network, and returns PyTorch's name and
// version. Error: kInvalidArgument, naming --peers.
absl::StatusOr<std::string> CheckDdp(const RankLaunchSettings& setting,
                                     const Network& network);

// Does RunOnce's work for kDdp. The images of each rank are made up and stay
// the same, so nothing is loaded. Only the length of each step is known: `rest`
// is the whole step. Errors: the Python's, with the rank; CombineRanks's.
absl::StatusOr<RoundSample> RunDdpOnce(const RankLaunchSettings& setting,
                                       const RunSpec& spec);

// Serves as one rank of a run, or as all ranks if the ranks are threads: loads
// the data, joins the group, and runs each RunSpec that the driver at
// `listener` sends. Errors: those of the data, the group, the training and the
// connection.
absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const DataFlags& data);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_TEAMS_H_
