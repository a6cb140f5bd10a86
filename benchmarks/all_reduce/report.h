// The ranks that the command `allreduce` measures: one rank, and the driver's
// view of all ranks. Also the order and the results of their turns, the numbers
// that the command reports, and the formulas of these numbers.
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
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Serves as a rank of `team` until the driver that listens at `listener` closes
// the connection. With kProcesses and kTcp, this process is the rank that the
// launcher's environment names. With kThreads, it runs all ranks; with kUpdate,
// it makes the updates. Errors: those of the group and of a turn;
// kInvalidArgument for kinds whose ranks run in another program.
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

// Returns the request for one call of that subject.
TurnRequest RequestOf(const AllReduceSettings& settings, Operation operation,
                      int64_t bytes, const Subject& subject);

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

// The speed relative to a peer: the p50 of the peer's fastest algorithm divided
// by this subject's p50.
struct PeerRatio {
  Team peer = {TeamKind::kOpenMpi};
  double ratio = 0;
};

// The results of one subject's turns at one size, in seconds and bytes per
// second.
struct AllReduceRow {
  Subject subject;
  std::vector<double> seconds = {};  // One for each timed call; at least one.
  int64_t wrong = 0;
  int rounds = 0;  // The number of rounds in which the subject had a turn.
  // One value for each turn on a GPU. `seconds` then has the mean of the calls
  // of each turn.
  std::vector<double> host_seconds = {};
  NcclChoice choice = {};
  // The fields below are set by DeriveSize.
  double p50 = 0, p95 = 0, p99 = 0, mean = 0, min = 0, max = 0;
  // With S the bytes of a message and t = p50: algbw = S / t; busbw = algbw *
  // BusFactor.
  double alg_bw = 0, bus_bw = 0;
  std::optional<double> host = {};            // Median of host_seconds.
  std::optional<double> bound_fraction = {};  // bound_seconds / p50.
  std::vector<PeerRatio> ratios = {};  // Set for backends, in order of peers.
};

// Returns, for each peer, its algorithm with the least p50.
std::vector<const AllReduceRow*> BestPeers(
    const std::vector<AllReduceRow>& rows);

// Returns the factor that makes a bandwidth comparable with a link's bandwidth
// for any number of ranks (nccl-tests, PERFORMANCE.md): 2 (P-1)/P for
// all-reduce, 1 for broadcast, (P-1)/P for the others.
double BusFactor(Operation operation, int world_size);

struct AllReduceSize {
  Operation operation = Operation::kAllReduce;
  int64_t bytes = 0;
  std::vector<AllReduceRow> rows = {};  // DeriveSize removes the updates' row.
  // The fields below are set by DeriveSize.
  int64_t count = 0;  // As in nccl-tests: elements of a message or of its part.
  // The bytes read plus the bytes written per second in the fastest update. All
  // cores together update in place as much memory as the ranks' buffers take,
  // just after writing it (Updater). 0 without updates, as on a GPU.
  double update_bw = 0;
  int64_t update_wrong = 0;  // The number of wrong values after updates.
  // The least time of the collective at bandwidth update_bw. Any implementation
  // must read and write at least this many messages of S bytes:
  //   all_reduce, all_to_all  2 P     (every rank reads one and writes one)
  //   reduce_scatter          P + 1   (reads one, writes its part)
  //   all_gather              P + 1   (reads its part; P in place, where the
  //                                    part stays)
  //   broadcast               P       (one reads, the others write)
  // Empty for one rank, and for messages below kSmallestWithBound, whose
  // updates take no longer than reading the clock.
  std::optional<double> bound_seconds = {};
};

using TakeTurnFunction = std::function<absl::StatusOr<AllReduceTurn>(
    const Team& team, const TurnRequest& request)>;

// Measures messages of `bytes`, one of SizesOf, in rounds (harness/rounds.h).
// There are settings.rounds rounds; if that is 0, as many as fit in the size's
// share of settings.seconds, at least 3.
//
// If a peer's turn fails, the peer is removed from `subjects` and added to
// `missing`. If the library lacks an algorithm, only that algorithm is removed.
// After three rounds, a peer's algorithm takes no more turns if its fastest
// call took over 1.5 times the median of another algorithm of that peer.
//
// Errors: that of a backend's turn, beginning with its name; CheckInterrupted's
// if a peer's turn fails because of a signal.
absl::StatusOr<AllReduceSize> MeasureSize(const AllReduceSettings& settings,
                                          Operation operation, int64_t bytes,
                                          const TakeTurnFunction& take_turn,
                                          const ClockFunction& clock,
                                          std::vector<Subject>& subjects,
                                          std::vector<MissingPeer>& missing);

inline constexpr int64_t kSmallestWithBound = 4 << 10;

struct AllReduceReport {
  AllReduceSettings settings;
  report::Origin origin;
  std::vector<std::string> notes;  // Sentences that a reader of it must know.
  std::vector<MissingPeer> missing;
  std::vector<NcclProbe> nccl;  // One for each team on GPUs.
  std::vector<AllReduceSize> sizes;
  std::vector<std::string> remarks = {};  // How the run ended, if early.
};

// Sets each row's `choice` to NCCL's choice for the same call in a probe.
void AddChoices(const std::vector<NcclProbe>& probes, AllReduceSize& size);

// Returns `measured` with the derived fields set. measured: at least one sample
// of each subject, including the updates if there are any.
AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize measured);

// Returns the number of wrong elements of all rows and updates.
int64_t CountWrong(std::span<const AllReduceReport> reports);

// Returns one document of reports that differ in world size, type and place, in
// order. README.md lists the keys of its JSON. Keys of a result that nccl-tests
// has too have its names, units and values: times in microseconds, bandwidths
// in GB/s, types "float", "half", ... `finished`: whether all sizes are
// measured. Until then, the document ends with the table.
report::Document AllReduceDocument(std::span<const AllReduceReport> reports,
                                   bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
