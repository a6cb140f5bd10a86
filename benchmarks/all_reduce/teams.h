// The ranks that the command `allreduce` measures: one rank, and the driver's
// view of all ranks.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TEAMS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TEAMS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {

// Serves as a rank of `team` until the driver that listens at `listener` closes
// the connection. With kProcesses and kTcp, this process is the rank that the
// launcher's environment names. With kThreads, it runs all ranks; with a
// control, it takes the control's turns. Errors: those of the group and of a
// turn; kInvalidArgument for kinds whose ranks run in another program.
absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size);

// The places and limits with which teams are started.
struct TeamSetting {
  std::string folder;  // The folder of this program and of the ranks' programs.
  std::string store;   // An empty folder in which Gloo's or oneCCL's ranks
                       // meet.
  // The folder of all of Open MPI's files, including the memory that its ranks
  // share. Empty: Open MPI's default. AllReduceTeams::Start sets this field.
  std::string mpi_folder = {};
  int cores = 1;           // The number of cores that the ranks may use.
  absl::Duration timeout;  // The limit for ranks to start, and for a turn.
};

// Returns the command that starts a team of `world_size` ranks, which connect
// to `listener`. The program `allreduce` itself is the rank of processes (also
// over TCP), threads and updates. Ranks that need a library have their own
// programs. peer_algorithm: for ranks that read it when they start.
TeamCommand CommandOf(const TeamSetting& setting, const Team& team,
                      int world_size, const std::string& listener,
                      int32_t peer_algorithm = 0);

// The content of NCCL's log for a team on GPUs, read before anything was timed.
struct NcclProbe {
  struct Call {
    Operation operation = Operation::kAllReduce;
    int64_t bytes = 0;
    BufferKind buffers = BufferKind::kOrdinary;
    NcclChoice choice = {};
  };

  Team team;
  NcclFacts facts = {};
  std::string gpu = {};  // The name of rank 0's GPU.
  bool shared_gpu = false;
  bool direct = false;  // Whether ranks read each other's group memory.
  std::vector<Call> calls = {};
};

// Combines the results of ranks that took the same turn: SlowestOf their calls,
// the longest host_seconds, and rank 0's other fields. ranks: at least one.
// Error: SlowestOf's.
absl::StatusOr<AllReduceTurn> CombineTurns(
    const std::vector<AllReduceTurn>& ranks);

// All teams of a run, started and ready. Not thread safe.
class AllReduceTeams {
 public:
  // Starts every team of the settings; only for single-threaded processes. A
  // peer that does not start is added to `missing`.
  //
  // Open MPI's files are in a folder that this object removes at its end,
  // because a killed mpirun leaves them. The folder is in the folder that the
  // environment's OMPI_MCA_btl_vader_backing_directory names, or in /dev/shm.
  //
  // A team on GPUs is started twice. The ranks of the first start write NCCL's
  // log, make one call of each kind, and end. Then the ranks to be timed start.
  // They write no log, so that no timed call waits for a file.
  //
  // Errors: why a backend's team did not start, beginning with its name; also
  // kFailedPrecondition if a peer's ranks have another world size.
  static absl::StatusOr<std::unique_ptr<AllReduceTeams>> Start(
      const AllReduceSettings& settings, TeamSetting setting,
      std::vector<MissingPeer>& missing);

  // Has every rank of the team take a turn. Errors: RankTeam::Ask's, after
  // which the team is stopped and removed; CombineTurns'; kNotFound if there is
  // no such team.
  absl::StatusOr<AllReduceTurn> TakeTurn(const Team& team,
                                         const TurnRequest& request);

  bool Has(const Team& team) const;

  // The probes of all teams on GPUs that were started.
  const std::vector<NcclProbe>& probes() const { return probes_; }

  // Ends all teams. Error: that of the first team that failed to end, ignoring
  // peers.
  absl::Status Stop();

 private:
  struct RunningTeam {
    bool ServesRequest(const TurnRequest& request) const {
      return !StartsPerAlgorithm(team.kind) ||
             peer_algorithm == request.peer_algorithm;
    }

    Team team;
    int32_t peer_algorithm = 0;  // As for CommandOf.
    std::unique_ptr<RankTeam> ranks;
  };

  explicit AllReduceTeams(absl::Duration timeout) : timeout_(timeout) {}

  const absl::Duration timeout_;
  // The folder of a run with MPI. It is removed after the teams are gone.
  absl::StatusOr<TemporaryFolder> mpi_folder_ = absl::UnknownError("");
  std::vector<RunningTeam> teams_;
  std::vector<NcclProbe> probes_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TEAMS_H_
