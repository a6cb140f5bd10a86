#include "benchmarks/all_reduce/results.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/teams.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/exchange.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {

// The order of turns.
namespace {

// The most calls in a turn of an algorithm that a peer would not choose itself.
// If ranks share cores, some algorithms take a hundred times as long as others.
constexpr int32_t kMaxPeerIterations = 50;

// Takes one turn and adds its results to `measured`. Errors: those of
// `take_turn`; kUnimplemented if the library does not support the call.
absl::Status AddTurn(const AllReduceSettings& settings, Operation operation,
                     int64_t bytes, int round,
                     const TakeTurnFunction& take_turn,
                     AllReduceRow& measured) {
  const Subject& subject = measured.subject;
  TurnRequest request = RequestOf(settings, operation, bytes, subject);
  request.iterations = TimedIterations(settings, bytes);
  if (subject.peer_algorithm > 0 && settings.iterations == 0) {
    request.iterations = std::min(request.iterations, kMaxPeerIterations);
  }
  request.warmup = WarmupIterations(settings, bytes, round);
  request.first = int64_t{round} * request.iterations;
  LOCKSTEP_ASSIGN_OR_RETURN(const AllReduceTurn turn,
                            take_turn(subject.team, request));
  if (!turn.missing.empty()) return absl::UnimplementedError(turn.missing);
  measured.wrong += turn.calls.wrong;
  ++measured.rounds;
  measured.seconds.insert(measured.seconds.end(), turn.calls.seconds.begin(),
                          turn.calls.seconds.end());
  if (OnGpu(subject.team.kind)) {
    measured.host_seconds.push_back(turn.host_seconds);
  }
  return absl::OkStatus();
}

// The fewest rounds of a size. An algorithm of a peer that is far behind
// another has that many too.
constexpr int kMinRounds = 3;

// Returns whether the fastest call of a peer's algorithm took much longer than
// the median call of another of the peer's algorithms.
bool IsFarBehind(const std::vector<AllReduceRow>& rows,
                 const AllReduceRow& row) {
  constexpr double kFar = 1.5;
  if (!IsPeer(row.subject.team.kind)) return false;
  const double fastest = std::ranges::min(row.seconds);
  return std::ranges::any_of(rows, [&](const AllReduceRow& other) {
    return other.subject.team == row.subject.team && !other.seconds.empty() &&
           fastest > kFar * Median(other.seconds);
  });
}

// Returns the number of sizes, summed over all collectives.
size_t CountMeasurements(const AllReduceSettings& settings) {
  size_t all = 0;
  for (const Operation operation : settings.collectives) {
    all += SizesOf(settings, operation).size();
  }
  return all;
}

}  // namespace

absl::StatusOr<AllReduceSize> MeasureSize(const AllReduceSettings& settings,
                                          Operation operation, int64_t bytes,
                                          const TakeTurnFunction& take_turn,
                                          const ClockFunction& clock,
                                          std::vector<Subject>& subjects,
                                          std::vector<MissingPeer>& missing) {
  AllReduceSize measured = {.operation = operation, .bytes = bytes};
  for (const Subject& subject : subjects) {
    if (subject.peer_algorithm > 0 && operation != Operation::kAllReduce) {
      continue;
    }
    if (subject.team.kind == TeamKind::kExchange &&
        (bytes > kMostExchanged || operation != Operation::kAllReduce ||
         settings.type != DataType::kFloat32)) {
      continue;
    }
    measured.rows.push_back({.subject = subject});
  }
  const auto is_gone = [&](const AllReduceRow& row) {
    return std::ranges::count(subjects, row.subject) == 0;
  };
  const RoundLimits limits = {
      .rounds = settings.rounds,
      .fewest = kMinRounds,
      .seconds =
          settings.seconds / static_cast<double>(CountMeasurements(settings))};
  const auto take = [&](int round, size_t next) -> absl::Status {
    AllReduceRow& row = measured.rows[next];
    if (is_gone(row)) return absl::OkStatus();
    if (round >= kMinRounds && IsFarBehind(measured.rows, row)) {
      return absl::OkStatus();
    }
    const absl::Status status =
        AddTurn(settings, operation, bytes, round, take_turn, row);
    if (status.ok()) return status;
    const Team& team = row.subject.team;
    if (!IsPeer(team.kind)) return Named(Name(row.subject), status);
    // An interrupt is not the peer's failure.
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    const absl::string_view algorithm = PeerAlgorithm(row.subject);
    missing.push_back(
        {team, absl::StrCat(algorithm, algorithm.empty() ? "" : ": ",
                            status.message())});
    std::erase_if(subjects, [&](const Subject& subject) {
      return absl::IsUnimplemented(status) ? subject == row.subject
                                           : subject.team == team;
    });
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(
      MeasureRounds(limits, measured.rows.size(), clock, take).status());
  std::erase_if(measured.rows, is_gone);
  return measured;
}

// Numbers from samples.
namespace {

void DeriveRow(double bus_factor, int64_t bytes, AllReduceRow& row) {
  row.p50 = Median(row.seconds);
  row.p95 = Percentile(row.seconds, 95);
  row.p99 = Percentile(row.seconds, 99);
  row.mean = Mean(row.seconds);
  row.min = std::ranges::min(row.seconds);
  row.max = std::ranges::max(row.seconds);
  row.alg_bw = static_cast<double>(bytes) / row.p50;
  row.bus_bw = row.alg_bw * bus_factor;
  if (!row.host_seconds.empty()) row.host = Median(row.host_seconds);
}

// Returns the bytes that the fastest update read and wrote per second. An
// update reads and writes as much memory as the ranks' buffers take: P messages
// in place, otherwise 2 P.
double UpdateBandwidth(const AllReduceSettings& settings,
                       const AllReduceSize& size, const AllReduceRow& update) {
  const bool in_place = InPlace(settings, size.operation, TeamKind::kUpdate);
  const double moved = static_cast<double>(size.bytes) * settings.world_size *
                       (in_place ? 2 : 4);
  return moved / std::ranges::min(update.seconds);
}

// Returns the number of messages in the table at AllReduceSize::bound_seconds.
int BoundMessages(const AllReduceSettings& settings, Operation operation) {
  const int ranks = settings.world_size;
  switch (operation) {
    case Operation::kReduceScatter:
      return ranks + 1;
    case Operation::kAllGather:
      return settings.in_place ? ranks : ranks + 1;
    case Operation::kBroadcast:
      return ranks;
    default:
      return 2 * ranks;
  }
}

void AddRatios(std::vector<AllReduceRow>& rows) {
  for (AllReduceRow& row : rows) {
    if (IsPeer(row.subject.team.kind)) continue;
    for (const AllReduceRow* const peer : BestPeers(rows)) {
      row.ratios.push_back({peer->subject.team, peer->p50 / row.p50});
    }
  }
}

}  // namespace

std::vector<const AllReduceRow*> BestPeers(
    const std::vector<AllReduceRow>& rows) {
  std::vector<const AllReduceRow*> best;
  for (const AllReduceRow& row : rows) {
    const Team& team = row.subject.team;
    if (!IsPeer(team.kind)) continue;
    const auto same =
        std::ranges::find_if(best, [&](const AllReduceRow* const other) {
          return other->subject.team == team;
        });
    if (same == best.end()) {
      best.push_back(&row);
    } else if (row.p50 < (*same)->p50) {
      *same = &row;
    }
  }
  return best;
}

void AddChoices(const std::vector<NcclProbe>& probes, AllReduceSize& size) {
  for (AllReduceRow& row : size.rows) {
    for (const NcclProbe& probe : probes) {
      if (probe.team != row.subject.team) continue;
      for (const NcclProbe::Call& call : probe.calls) {
        if (call.operation == size.operation && call.bytes == size.bytes &&
            call.buffers == row.subject.buffers) {
          row.choice = call.choice;
        }
      }
    }
  }
}

double BusFactor(Operation operation, int world_size) {
  const double ranks = world_size;
  switch (operation) {
    case Operation::kAllReduce:
      return 2 * (ranks - 1) / ranks;
    case Operation::kBroadcast:
      return 1;
    default:
      return (ranks - 1) / ranks;
  }
}

AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize size) {
  const bool whole = size.operation == Operation::kAllReduce ||
                     size.operation == Operation::kBroadcast;
  size.count =
      size.bytes / SizeOf(settings.type) / (whole ? 1 : settings.world_size);
  std::optional<double> exchange;
  std::erase_if(size.rows, [&](const AllReduceRow& row) {
    const TeamKind kind = row.subject.team.kind;
    if (!IsControl(kind)) return false;
    size.control_wrong += row.wrong;
    if (kind == TeamKind::kExchange) exchange = Median(row.seconds);
    if (kind == TeamKind::kUpdate) {
      size.update_bw = UpdateBandwidth(settings, size, row);
    }
    return true;
  });
  const double bus_factor = BusFactor(size.operation, settings.world_size);
  for (AllReduceRow& row : size.rows) DeriveRow(bus_factor, size.bytes, row);
  if (settings.world_size > 1 && size.bytes < kSmallestWithBound) {
    size.bound_seconds = exchange;
  } else if (settings.world_size > 1 && size.update_bw > 0) {
    size.bound_seconds = BoundMessages(settings, size.operation) *
                         static_cast<double>(size.bytes) / size.update_bw;
  }
  for (AllReduceRow& row : size.rows) {
    if (!size.bound_seconds.has_value()) break;
    row.bound_fraction = *size.bound_seconds / row.p50;
  }
  AddRatios(size.rows);
  return size;
}

int64_t CountWrong(std::span<const AllReduceReport> reports) {
  int64_t wrong = 0;
  for (const AllReduceReport& report : reports) {
    for (const AllReduceSize& size : report.sizes) {
      wrong += size.control_wrong;
      for (const AllReduceRow& row : size.rows) wrong += row.wrong;
    }
  }
  return wrong;
}

}  // namespace lockstep::benchmarks
