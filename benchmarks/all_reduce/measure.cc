#include "benchmarks/all_reduce/measure.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
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

}  // namespace lockstep::benchmarks
