// The ranks that the command `allreduce` measures: what one does, and all of
// them as their driver sees them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANKS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANKS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"

namespace lockstep::benchmarks {

// Is a rank of `team` (kProcesses: the one that the launcher says; kThreads:
// all of them) or the copier (kCopy), and takes turns until the driver that
// listens at `listener` says that it is over. Errors: of the group, of a turn.
absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size);

// Where and how teams are started.
struct TeamSetting {
  std::string folder;  // Of this program, and of those beside it.
  std::string store;   // An empty folder, where Gloo's ranks meet.
  // Where Open MPI keeps all its files, the memory that its ranks share among
  // them; empty: where it does by default. AllReduceTeams::Start sets it.
  std::string mpi_folder = {};
  int cores = 1;           // That the ranks may use.
  absl::Duration timeout;  // For ranks to start, and for a turn.
};

// The command that starts a team of `world_size` ranks, which connect to
// `listener`. allreduce itself is the rank of processes, threads and copies;
// MPI's ranks, which need its library, are programs of their own.
TeamCommand CommandOf(const TeamSetting& setting, const Team& team,
                      int world_size, const std::string& listener);

// All teams of a run, started and ready. Not thread safe.
class AllReduceTeams {
 public:
  // Starts every team of the settings; single-threaded processes only. A peer
  // that does not start, or not with the right number of ranks, is added to
  // `missing`. Open MPI's files are in a folder that this object removes at its
  // end, since an mpirun that is killed leaves them: below the folder that the
  // environment's OMPI_MCA_btl_vader_backing_directory names, or in /dev/shm.
  // Errors: why another team did not start, beginning with its name.
  static absl::StatusOr<std::unique_ptr<AllReduceTeams>> Start(
      const AllReduceSettings& settings, TeamSetting setting,
      std::vector<MissingPeer>& missing);

  // Has every rank of the team take a turn. Errors: RankTeam::Ask's and
  // SlowestOf's; the team is then gone.
  absl::StatusOr<TimedCalls> TakeTurn(const Team& team,
                                      const TurnRequest& request);

  // Ends all teams. Error: that of a team which did not end well, if it is no
  // peer.
  absl::Status Stop();

 private:
  explicit AllReduceTeams(absl::Duration timeout) : timeout_(timeout) {}

  const absl::Duration timeout_;
  std::optional<TemporaryFolder> mpi_folder_;  // Goes after the teams.
  std::vector<std::pair<Team, std::unique_ptr<RankTeam>>> teams_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_RANKS_H_
