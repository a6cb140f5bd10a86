#include "benchmarks/syncbn/measure.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kMostRounds = 200;

// Of the time, where there are layers too.
constexpr double kNetworkShare = 0.3;

constexpr int kWarmup = 2;

double LayerSeconds(const SyncBnSettings& settings) {
  const double all =
      settings.seconds * (settings.network ? 1 - kNetworkShare : 1);
  return all / static_cast<double>(ShapesOf(settings).size());
}

double NetworkSeconds(const SyncBnSettings& settings) {
  return settings.seconds * (settings.sets.empty() ? 1 : kNetworkShare);
}

// Adds one turn to what was measured.
absl::Status AddTurn(SyncBnRequest request, const TakeSyncBnTurn& take_turn,
                     SyncBnMeasured& measured) {
  request.subject = measured.subject;
  absl::StatusOr<TeamTurn> turn = take_turn(request);
  if (!turn.ok()) return Named(Name(measured.subject), turn.status());
  measured.missing = turn->missing;
  measured.wrong += turn->wrong;
  if (measured.note.empty()) measured.note = turn->note;
  if (measured.gpu.empty()) measured.gpu = turn->gpu;
  measured.shared_gpu = measured.shared_gpu || turn->shared_gpu;
  const auto append = [](const std::vector<TeamCall>& from,
                         std::vector<TeamCall>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(turn->forward, measured.forward);
  append(turn->backward, measured.backward);
  return absl::OkStatus();
}

absl::StatusOr<MeasuredTurns> MeasureTurns(
    const SyncBnSettings& settings, double budget, SyncBnRequest request,
    std::span<const SyncBnSubject> subjects, const TakeSyncBnTurn& take_turn,
    const ClockFunction& clock) {
  MeasuredTurns measured;
  for (const SyncBnSubject subject : subjects) {
    measured.subjects.push_back({.subject = subject});
  }
  const RoundLimits limits = {
      .rounds = settings.rounds, .most = kMostRounds, .seconds = budget};
  LOCKSTEP_ASSIGN_OR_RETURN(
      measured.rounds,
      MeasureRounds(limits, subjects.size(), clock, [&](int round, size_t i) {
        if (!measured.subjects[i].missing.empty()) return absl::OkStatus();
        // Large tensors leave nothing in a cache that a warm-up could prepare.
        const bool large = request.iterations == 1;
        request.warmup = large && round > 0 ? 0 : large ? 1 : kWarmup;
        return AddTurn(request, take_turn, measured.subjects[i]);
      }));
  return measured;
}

}  // namespace

const SyncBnMeasured* MeasuredTurns::Find(SyncBnSubject subject) const {
  for (const SyncBnMeasured& measured : subjects) {
    if (measured.subject == subject) return &measured;
  }
  return nullptr;
}

absl::StatusOr<MeasuredTurns> MeasureLayer(const SyncBnSettings& settings,
                                           const LayerShape& shape,
                                           const TakeSyncBnTurn& take_turn,
                                           const ClockFunction& clock) {
  std::vector<SyncBnSubject> subjects = {
      SyncBnSubject::kLocal, SyncBnSubject::kOwnLocal, SyncBnSubject::kSync,
      SyncBnSubject::kSplit, SyncBnSubject::kMessage,  SyncBnSubject::kCopy};
  if (settings.torch) subjects.push_back(SyncBnSubject::kTorch);
  SyncBnRequest request;
  request.layer = SpecOf(settings, shape);
  request.iterations = TimedIterations(settings, shape);
  return MeasureTurns(settings, LayerSeconds(settings), request, subjects,
                      take_turn, clock);
}

absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock) {
  const SyncBnSubject subjects[] = {SyncBnSubject::kLocal, SyncBnSubject::kSync,
                                    SyncBnSubject::kSplit};
  SyncBnRequest request;
  request.network = 1;
  request.layer.n = NetworkBatch(settings);
  request.layer.seed = settings.seed;
  return MeasureTurns(settings, NetworkSeconds(settings), request, subjects,
                      take_turn, clock);
}

}  // namespace lockstep::benchmarks
