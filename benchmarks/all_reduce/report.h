// What the turns of all teams give, in which order they are taken; the numbers
// of the command `allreduce`, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/rounds.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// What the turns of one subject gave at one size.
struct MeasuredSubject {
  Subject subject;
  std::vector<double> seconds = {};  // Of every timed call; at least one.
  int64_t wrong = 0;
};

struct MeasuredSize {
  int64_t bytes = 0;
  int rounds = 0;
  std::vector<MeasuredSubject> subjects;  // The copy among them.
};

using TakeTurnFunction = std::function<absl::StatusOr<TimedCalls>(
    const Team& team, const TurnRequest& request)>;

// Measures messages of `bytes` in rounds (harness/rounds.h): settings.rounds,
// or at least 3 within the size's part of settings.seconds. A peer whose turn
// fails is taken out of `subjects` and added to `missing`. Error: that of any
// other's turn, beginning with its name.
absl::StatusOr<MeasuredSize> MeasureSize(const AllReduceSettings& settings,
                                         int64_t bytes,
                                         const TakeTurnFunction& take_turn,
                                         const ClockFunction& clock,
                                         std::vector<Subject>& subjects,
                                         std::vector<MissingPeer>& missing);

// How much faster than a peer: the peer's p50 over this subject's.
struct PeerRatio {
  TeamKind peer = TeamKind::kOpenMpi;
  double ratio = 0;
};

// One subject at one size. Seconds, and bytes per second.
struct AllReduceRow {
  Subject subject;
  int64_t samples = 0;
  int64_t wrong = 0;
  double p50 = 0, p95 = 0, p99 = 0, mean = 0, min = 0, max = 0;
  // With S the bytes of a message and t = p50: algbw = S / t; busbw = algbw *
  // 2 (P-1) / P, which compares with the bandwidth of a link however many ranks
  // there are (nccl-tests, PERFORMANCE.md).
  double alg_bw = 0, bus_bw = 0;
  std::optional<double> bound_fraction;  // bound_seconds / p50.
  std::vector<PeerRatio> ratios;         // Of a backend's, in order of peers.
};

struct AllReduceSize {
  int64_t bytes = 0;
  int64_t count = 0;
  int rounds = 0;
  // Bytes read plus bytes written per second by all cores together, copying
  // within memory of the size that the ranks' buffers have.
  double copy_bw = 0;
  int64_t copy_wrong = 0;  // Elements that a copy got wrong.
  // However it is done, P ranks read P messages and write P messages, which at
  // that bandwidth takes 2 P S / copy_bw. Not for one rank, nor for messages
  // below kBoundFrom: there it is waiting for one another that takes time, and
  // copies fit in the cores' own caches.
  std::optional<double> bound_seconds;
  std::vector<AllReduceRow> rows;  // Without the copy.
};

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
                         const MeasuredSize& measured);

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
