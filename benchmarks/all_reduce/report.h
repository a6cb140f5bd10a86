// The ranks that the command `allreduce` measures, one of them and all as their
// driver sees them; what their turns give, in which order they are taken; the
// numbers of the command, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Is a rank of `team` (kProcesses: the one that the launcher says; kThreads:
// all of them) or the one that updates (kUpdate), and takes turns until the
// driver that listens at `listener` says that it is over. Errors: of the group,
// of a turn.
absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size);

// Where and how teams are started.
struct TeamSetting {
  std::string folder;  // Of this program, and of those beside it.
  std::string store;   // An empty folder, where Gloo's or oneCCL's ranks
                       // meet.
  // Where Open MPI keeps all its files, the memory that its ranks share among
  // them; empty: where it does by default. AllReduceTeams::Start sets it.
  std::string mpi_folder = {};
  int cores = 1;           // That the ranks may use.
  absl::Duration timeout;  // For ranks to start, and for a turn.
};

// The command that starts a team of `world_size` ranks, which connect to
// `listener`. allreduce itself is the rank of processes, threads and copies;
// ranks that need a library are programs of their own. peer_algorithm: of ranks
// that read their algorithm when they start.
TeamCommand CommandOf(const TeamSetting& setting, const Team& team,
                      int world_size, const std::string& listener,
                      int32_t peer_algorithm = 0);

// One call for that subject.
TurnRequest RequestOf(const AllReduceSettings& settings, Operation operation,
                      int64_t bytes, const Subject& subject);

// What NCCL said before anything was timed, of a team on GPUs.
struct NcclProbe {
  struct Call {
    Operation operation = Operation::kAllReduce;
    int64_t bytes = 0;
    BufferKind buffers = BufferKind::kOrdinary;
    NcclChoice choice = {};
  };

  Team team;
  NcclFacts facts = {};
  std::string gpu = {};  // Of rank 0.
  bool shared_gpu = false;
  std::vector<Call> calls = {};
};

// Of ranks that took the same turn: calls as SlowestOf has them, the longest
// host_seconds, and what rank 0 says of the rest. ranks: at least one. Error:
// SlowestOf's.
absl::StatusOr<AllReduceTurn> CombineTurns(
    const std::vector<AllReduceTurn>& ranks);

// All teams of a run, started and ready. Not thread safe.
class AllReduceTeams {
 public:
  // Starts every team of the settings; single-threaded processes only. A peer
  // that does not start, or not with the right number of ranks, is added to
  // `missing`. Open MPI's files are in a folder that this object removes at its
  // end, since an mpirun that is killed leaves them: below the folder that the
  // environment's OMPI_MCA_btl_vader_backing_directory names, or in /dev/shm.
  //
  // A team on GPUs is started twice. The first time its ranks write NCCL's log
  // and make one call of each kind; they end before the others start, which
  // write none, so that nothing which is timed waits for a file.
  //
  // Errors: why another team did not start, beginning with its name.
  static absl::StatusOr<std::unique_ptr<AllReduceTeams>> Start(
      const AllReduceSettings& settings, TeamSetting setting,
      std::vector<MissingPeer>& missing);

  // Has every rank of the team take a turn. Errors: RankTeam::Ask's and
  // CombineTurns'; the team is then gone.
  absl::StatusOr<AllReduceTurn> TakeTurn(const Team& team,
                                         const TurnRequest& request);

  bool Has(const Team& team) const;

  // Of every team on GPUs that was started.
  const std::vector<NcclProbe>& probes() const { return probes_; }

  // Ends all teams. Error: that of a team which did not end well, if it is no
  // peer.
  absl::Status Stop();

 private:
  struct RunningTeam {
    bool Runs(const TurnRequest& request) const {
      return !StartsPerAlgorithm(team.kind) ||
             peer_algorithm == request.peer_algorithm;
    }

    Team team;
    int32_t peer_algorithm = 0;  // As of CommandOf.
    std::unique_ptr<RankTeam> ranks;
  };

  explicit AllReduceTeams(absl::Duration timeout) : timeout_(timeout) {}

  const absl::Duration timeout_;
  // Of a run with MPI; goes after the teams.
  absl::StatusOr<TemporaryFolder> mpi_folder_ = absl::UnknownError("");
  std::vector<RunningTeam> teams_;
  std::vector<NcclProbe> probes_;
};

// How much faster than a peer: the p50 of the peer's fastest algorithm over
// this subject's.
struct PeerRatio {
  Team peer = {TeamKind::kOpenMpi};
  double ratio = 0;
};

// What the turns of one subject gave at one size, and its numbers: seconds, and
// bytes per second.
struct AllReduceRow {
  Subject subject;
  std::vector<double> seconds = {};  // Of every timed call; at least one.
  int64_t wrong = 0;
  int rounds = 0;  // In which it had a turn.
  // On a GPU, of every turn, for which `seconds` has the mean of its calls.
  std::vector<double> host_seconds = {};
  NcclChoice choice = {};
  // By DeriveSize.
  double p50 = 0, p95 = 0, p99 = 0, mean = 0, min = 0, max = 0;
  // With S the bytes of a message and t = p50: algbw = S / t; busbw = algbw *
  // BusFactor.
  double alg_bw = 0, bus_bw = 0;
  std::optional<double> host = {};            // Median of host_seconds.
  std::optional<double> bound_fraction = {};  // bound_seconds / p50.
  std::vector<PeerRatio> ratios = {};  // Of a backend's, in order of peers.
};

// Returns, for each peer, its algorithm with the least p50.
std::vector<const AllReduceRow*> BestPeers(
    const std::vector<AllReduceRow>& rows);

// What makes a bandwidth comparable with that of a link however many ranks
// there are (nccl-tests, PERFORMANCE.md): 2 (P-1)/P for all-reduce, 1 for
// broadcast, (P-1)/P for the others.
double BusFactor(Operation operation, int world_size);

struct AllReduceSize {
  Operation operation = Operation::kAllReduce;
  int64_t bytes = 0;
  std::vector<AllReduceRow> rows = {};  // Updates among them until DeriveSize.
  // By DeriveSize.
  int64_t count = 0;  // As nccl-tests': elements of a part where there are.
  // Bytes read plus bytes written per second by all cores together that update
  // in place as much memory as the ranks' buffers have, which they have just
  // written (Updater), in the fastest of all calls. 0 on a GPU.
  double update_bw = 0;
  int64_t update_wrong = 0;  // Values that an update got wrong.
  // However it is done, memory must be read and written, in messages of S:
  //   all_reduce, all_to_all  2 P     (every rank reads one and writes one)
  //   reduce_scatter          P + 1   (reads one, writes its part)
  //   all_gather              P + 1   (reads its part; P in place, where that
  //                                    stays)
  //   broadcast               P       (one reads, the others write)
  // which takes so long at that bandwidth. Not for one rank, nor for messages
  // below kBoundFrom, whose updates are as short as a look at the clock.
  std::optional<double> bound_seconds = {};
};

using TakeTurnFunction = std::function<absl::StatusOr<AllReduceTurn>(
    const Team& team, const TurnRequest& request)>;

// Measures messages of `bytes`, one of SizesOf, in rounds (harness/measure.h):
// settings.rounds, or at least 3 within the size's part of settings.seconds. A
// peer whose turn fails, or an algorithm that its library lacks, is taken out
// of `subjects` and added to `missing`. After three rounds an algorithm has no
// more turns if its fastest call took 1.5 times as long as the median of
// another of the same peer. Error: that of any other's turn, beginning with its
// name.
absl::StatusOr<AllReduceSize> MeasureSize(const AllReduceSettings& settings,
                                          Operation operation, int64_t bytes,
                                          const TakeTurnFunction& take_turn,
                                          const ClockFunction& clock,
                                          std::vector<Subject>& subjects,
                                          std::vector<MissingPeer>& missing);

inline constexpr int64_t kBoundFrom = 4 << 10;

struct AllReduceReport {
  AllReduceSettings settings;
  report::Origin origin;
  std::vector<std::string> notes;  // What a reader must know about this run.
  std::vector<MissingPeer> missing;
  std::vector<NcclProbe> nccl;  // On GPUs: of every team.
  std::vector<AllReduceSize> sizes;
  std::vector<std::string> remarks = {};  // What became of the run.
};

// Fills in what NCCL chose for calls like these.
void AddChoices(const std::vector<NcclProbe>& probes, AllReduceSize& size);

// measured: at least one sample of each subject, and updates among them.
AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize measured);

// Wrong elements of all rows.
int64_t CountWrong(std::span<const AllReduceReport> reports);

// One document of reports that differ in world size, type and place, in order.
// README.md lists the keys of its JSON. Those of a result that
// nccl-tests has too have its names, units and values: times in microseconds,
// bandwidths in GB/s, types "float", "half", ... `finished`: whether all sizes
// are measured; what stands below the table is left out before.
report::Document AllReduceDocument(std::span<const AllReduceReport> reports,
                                   bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
