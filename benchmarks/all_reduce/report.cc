#include "benchmarks/all_reduce/report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"

namespace lockstep::benchmarks {

// The order of turns.
namespace {

TurnRequest RequestOf(const AllReduceSettings& settings, int64_t bytes,
                      const Subject& subject, int round) {
  TurnRequest request;
  request.type = settings.type;
  request.op = settings.op;
  request.buffers = subject.buffers;
  request.in_place = settings.in_place;
  request.count = bytes / SizeOf(settings.type);
  request.warmup = WarmupIterations(settings, bytes, round);
  request.iterations = TimedIterations(settings, bytes);
  request.first = static_cast<int64_t>(round) * request.iterations;
  return request;
}

// Adds one turn to what was measured.
absl::Status AddTurn(const AllReduceSettings& settings, int64_t bytes,
                     int round, const TakeTurnFunction& take_turn,
                     MeasuredSubject& measured) {
  const Subject& subject = measured.subject;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TimedCalls calls,
      take_turn(subject.team, RequestOf(settings, bytes, subject, round)));
  measured.wrong += calls.wrong;
  measured.seconds.insert(measured.seconds.end(), calls.seconds.begin(),
                          calls.seconds.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MeasuredSize> MeasureSize(const AllReduceSettings& settings,
                                         int64_t bytes,
                                         const TakeTurnFunction& take_turn,
                                         const ClockFunction& clock,
                                         std::vector<Subject>& subjects,
                                         std::vector<MissingPeer>& missing) {
  MeasuredSize measured;
  measured.bytes = bytes;
  for (const Subject& subject : subjects) {
    measured.subjects.push_back({subject, {}, 0});
  }
  std::vector<Subject> gone;
  const auto is_gone = [&gone](const Subject& subject) {
    return std::find(gone.begin(), gone.end(), subject) != gone.end();
  };
  const RoundLimits limits = {
      .rounds = settings.rounds,
      .seconds = settings.seconds / static_cast<double>(settings.sizes.size())};
  LOCKSTEP_ASSIGN_OR_RETURN(
      measured.rounds,
      MeasureRounds(
          limits, subjects.size(), clock, [&](int round, size_t next) {
            const Subject subject = measured.subjects[next].subject;
            if (is_gone(subject)) return absl::OkStatus();
            const absl::Status status = AddTurn(
                settings, bytes, round, take_turn, measured.subjects[next]);
            if (status.ok()) return status;
            if (!IsPeer(subject.team.kind)) return Named(Name(subject), status);
            missing.push_back(
                {subject.team.kind, std::string(status.message())});
            gone.push_back(subject);
            return absl::OkStatus();
          }));
  std::erase_if(subjects, is_gone);
  std::erase_if(measured.subjects, [&](const MeasuredSubject& other) {
    return is_gone(other.subject);
  });
  return measured;
}

// Numbers from samples.
namespace {

AllReduceRow RowOf(const AllReduceSettings& settings, int64_t bytes,
                   const MeasuredSubject& measured) {
  AllReduceRow row;
  row.subject = measured.subject;
  row.samples = static_cast<int64_t>(measured.seconds.size());
  row.wrong = measured.wrong;
  row.p50 = Median(measured.seconds);
  row.p95 = Percentile(measured.seconds, 95);
  row.p99 = Percentile(measured.seconds, 99);
  row.mean = Mean(measured.seconds);
  const auto [min, max] =
      std::minmax_element(measured.seconds.begin(), measured.seconds.end());
  row.min = *min;
  row.max = *max;
  const double ranks = settings.world_size;
  row.alg_bw = static_cast<double>(bytes) / row.p50;
  row.bus_bw = row.alg_bw * 2 * (ranks - 1) / ranks;
  return row;
}

// The copies went over as much memory as the buffers of the ranks have: P
// messages in place, else 2 P.
double CopyBandwidth(const AllReduceSettings& settings, int64_t bytes,
                     const MeasuredSubject& copy) {
  const double moved = static_cast<double>(bytes) * settings.world_size *
                       (settings.in_place ? 1 : 2);
  return moved / Median(copy.seconds);
}

void AddRatios(std::vector<AllReduceRow>& rows) {
  for (AllReduceRow& row : rows) {
    if (IsPeer(row.subject.team.kind)) continue;
    for (const AllReduceRow& peer : rows) {
      const TeamKind kind = peer.subject.team.kind;
      if (IsPeer(kind)) row.ratios.push_back({kind, peer.p50 / row.p50});
    }
  }
}

}  // namespace

AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         const MeasuredSize& measured) {
  AllReduceSize size;
  size.bytes = measured.bytes;
  size.count = measured.bytes / SizeOf(settings.type);
  size.rounds = measured.rounds;
  for (const MeasuredSubject& subject : measured.subjects) {
    if (subject.subject.team.kind == TeamKind::kCopy) {
      size.copy_bw = CopyBandwidth(settings, size.bytes, subject);
      size.copy_wrong = subject.wrong;
    } else {
      size.rows.push_back(RowOf(settings, size.bytes, subject));
    }
  }
  if (settings.world_size > 1 && size.bytes >= kBoundFrom) {
    size.bound_seconds = 2 * static_cast<double>(settings.world_size) *
                         static_cast<double>(size.bytes) / size.copy_bw;
    for (AllReduceRow& row : size.rows) {
      row.bound_fraction = *size.bound_seconds / row.p50;
    }
  }
  AddRatios(size.rows);
  return size;
}

int64_t CountWrong(const AllReduceReport& report) {
  int64_t wrong = 0;
  for (const AllReduceSize& size : report.sizes) {
    wrong += size.copy_wrong;
    for (const AllReduceRow& row : size.rows) wrong += row.wrong;
  }
  return wrong;
}

}  // namespace lockstep::benchmarks
