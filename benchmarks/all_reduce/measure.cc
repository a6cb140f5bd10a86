// Rounds of turns.
#include "benchmarks/all_reduce/measure.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 1000;

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

bool IsDone(const AllReduceSettings& settings, int rounds, double seconds) {
  if (settings.rounds > 0) return rounds >= settings.rounds;
  if (rounds < kFewestRounds) return false;
  return rounds >= kMostRounds ||
         seconds * static_cast<double>(settings.sizes.size()) >=
             settings.seconds;
}

// Adds one turn to what was measured.
absl::Status AddTurn(const AllReduceSettings& settings, int64_t bytes,
                     int round, const TakeTurnFunction& take_turn,
                     MeasuredSubject& measured) {
  const Subject& subject = measured.subject;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TurnResult result,
      take_turn(subject.team, RequestOf(settings, bytes, subject, round)));
  measured.wrong += result.wrong;
  measured.seconds.insert(measured.seconds.end(), result.seconds.begin(),
                          result.seconds.end());
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
  const double start = clock();
  while (!IsDone(settings, measured.rounds, clock() - start)) {
    std::vector<Subject> failed;
    for (size_t i = 0; i < measured.subjects.size(); ++i) {
      const size_t next =
          (static_cast<size_t>(measured.rounds) + i) % measured.subjects.size();
      const Subject subject = measured.subjects[next].subject;
      const absl::Status status = AddTurn(settings, bytes, measured.rounds,
                                          take_turn, measured.subjects[next]);
      if (status.ok()) continue;
      if (!IsPeer(subject.team.kind)) {
        return absl::Status(
            status.code(), absl::StrCat(Name(subject), ": ", status.message()));
      }
      missing.push_back({subject.team.kind, std::string(status.message())});
      failed.push_back(subject);
    }
    for (const Subject& gone : failed) {
      std::erase(subjects, gone);
      std::erase_if(measured.subjects, [&](const MeasuredSubject& other) {
        return other.subject == gone;
      });
    }
    ++measured.rounds;
  }
  return measured;
}

}  // namespace lockstep::benchmarks
