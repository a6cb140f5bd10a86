// The order and the results of the turns of the command `allreduce`, the
// numbers that the command reports, and the formulas of these numbers.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_RESULTS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_RESULTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/teams.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rounds.h"
#include "collectives/collective.h"
#include "report/document.h"

namespace lockstep::benchmarks {

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
  std::vector<AllReduceRow> rows =
      {};  // DeriveSize removes the controls' rows.
  // The fields below are set by DeriveSize.
  int64_t count = 0;  // As in nccl-tests: elements of a message or of its part.
  // The bytes read plus the bytes written per second in the fastest update. All
  // cores together update in place as much memory as the ranks' buffers take,
  // just after writing it (Updater). 0 without updates, as on a GPU.
  double update_bw = 0;
  int64_t control_wrong = 0;  // The number of wrong values of the controls.
  // The least time of the collective at bandwidth update_bw. Any implementation
  // must read and write at least this many messages of S bytes:
  //   all_reduce, all_to_all  2 P     (every rank reads one and writes one)
  //   reduce_scatter          P + 1   (reads one, writes its part)
  //   all_gather              P + 1   (reads its part; P in place, where the
  //                                    part stays)
  //   broadcast               P       (one reads, the others write)
  // Messages of at most kMostExchanged, whose updates take no longer than
  // reading the clock, are bounded by the p50 of TimeExchange. The p50 is taken
  // because the hypervisor may place two virtual cores on one core for a while,
  // where an exchange takes a quarter of the time. Empty for one rank,
  // between kMostExchanged and kSmallestWithBound, and for small messages where
  // ranks share cores.
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
// of each subject, including the controls if there are any.
AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize measured);

// Returns the number of wrong elements of all rows and controls.
int64_t CountWrong(std::span<const AllReduceReport> reports);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_RESULTS_H_
