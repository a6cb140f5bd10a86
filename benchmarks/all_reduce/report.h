// The ranks that the command `allreduce` measures, one of them and all as their
// driver sees them; what their turns give, in which order they are taken; the
// numbers of the command, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "report/document.h"

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

// How much faster than a peer: the peer's p50 over this subject's.
struct PeerRatio {
  TeamKind peer = TeamKind::kOpenMpi;
  double ratio = 0;
};

// What the turns of one subject gave at one size, and its numbers: seconds, and
// bytes per second.
struct AllReduceRow {
  Subject subject;
  std::vector<double> seconds = {};  // Of every timed call; at least one.
  int64_t wrong = 0;
  // By DeriveSize.
  double p50 = 0, p95 = 0, p99 = 0, mean = 0, min = 0, max = 0;
  // With S the bytes of a message and t = p50: algbw = S / t; busbw = algbw *
  // 2 (P-1) / P, which compares with the bandwidth of a link however many ranks
  // there are (nccl-tests, PERFORMANCE.md).
  double alg_bw = 0, bus_bw = 0;
  std::optional<double> bound_fraction = {};  // bound_seconds / p50.
  std::vector<PeerRatio> ratios = {};  // Of a backend's, in order of peers.
};

struct AllReduceSize {
  int64_t bytes = 0;
  int rounds = 0;
  std::vector<AllReduceRow> rows = {};  // The copy among them until DeriveSize.
  // By DeriveSize.
  int64_t count = 0;
  // Bytes read plus bytes written per second by all cores together, copying
  // within memory of the size that the ranks' buffers have.
  double copy_bw = 0;
  int64_t copy_wrong = 0;  // Elements that a copy got wrong.
  // However it is done, P ranks read P messages and write P messages, which at
  // that bandwidth takes 2 P S / copy_bw. Not for one rank, nor for messages
  // below kBoundFrom: there it is waiting for one another that takes time, and
  // copies fit in the cores' own caches.
  std::optional<double> bound_seconds = {};
};

using TakeTurnFunction = std::function<absl::StatusOr<TimedCalls>(
    const Team& team, const TurnRequest& request)>;

// Measures messages of `bytes` in rounds (harness/measure.h): settings.rounds,
// or at least 3 within the size's part of settings.seconds. A peer whose turn
// fails is taken out of `subjects` and added to `missing`. Error: that of any
// other's turn, beginning with its name.
absl::StatusOr<AllReduceSize> MeasureSize(const AllReduceSettings& settings,
                                          int64_t bytes,
                                          const TakeTurnFunction& take_turn,
                                          const ClockFunction& clock,
                                          std::vector<Subject>& subjects,
                                          std::vector<MissingPeer>& missing);

inline constexpr int64_t kBoundFrom = 64 << 10;

struct AllReduceReport {
  AllReduceSettings settings;
  report::Origin origin;
  std::vector<std::string> notes;  // What a reader must know about this run.
  std::vector<MissingPeer> missing;
  std::vector<AllReduceSize> sizes;
};

// measured: at least one sample of each subject, and the copy among them.
AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize measured);

// Wrong elements of all rows.
int64_t CountWrong(const AllReduceReport& report);

// README.md lists the keys of its JSON. Those of a result that
// nccl-tests has too have its names, units and values: times in microseconds,
// bandwidths in GB/s, types "float", "half", ... `finished`: whether all sizes
// are measured; what stands below the table is left out before.
report::Document AllReduceDocument(const AllReduceReport& report,
                                   bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
