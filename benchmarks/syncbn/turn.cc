#include "benchmarks/syncbn/turn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

// One call from what each rank saw of it.
absl::StatusOr<TeamCall> CombineCall(std::span<const CallTimes* const> ranks) {
  TeamCall all;
  const size_t messages = ranks[0]->messages.size();
  std::vector<double> complete(messages, 0);  // When the last rank entered.
  for (const CallTimes* rank : ranks) {
    if (rank->messages.size() != messages) {
      return absl::DataLossError(absl::StrCat("one rank saw ", messages,
                                              " messages, another ",
                                              rank->messages.size()));
    }
    for (size_t i = 0; i < messages; ++i) {
      complete[i] = std::max(complete[i], rank->messages[i].entered);
    }
  }
  const double share = 1 / static_cast<double>(ranks.size());
  for (const CallTimes* rank : ranks) {
    const double seconds = rank->end - rank->begin;
    all.seconds = std::max(all.seconds, seconds);
    CallSplit split = {.kernels = rank->kernels};
    for (size_t i = 0; i < messages; ++i) {
      const MessageTimes& message = rank->messages[i];
      split.wait += complete[i] - message.entered;
      split.communication += message.left - complete[i];
    }
    split.other = seconds - split.Sum();
    all.split.Add(split, share);
  }
  all.messages = static_cast<int64_t>(messages);
  for (const MessageTimes& message : ranks[0]->messages) {
    all.message_bytes += message.bytes;
  }
  return all;
}

absl::StatusOr<std::vector<TeamCall>> CombineCalls(
    std::span<const RankTurn> turns,
    std::vector<CallTimes> RankTurn::*direction) {
  std::vector<TeamCall> calls;
  const size_t count = (turns[0].*direction).size();
  for (const RankTurn& turn : turns) {
    if ((turn.*direction).size() == count) continue;
    return absl::DataLossError(absl::StrCat("one rank timed ", count,
                                            " calls, another ",
                                            (turn.*direction).size()));
  }
  for (size_t i = 0; i < count; ++i) {
    std::vector<const CallTimes*> ranks;
    for (const RankTurn& turn : turns) {
      ranks.push_back(&(turn.*direction)[i]);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const TeamCall call, CombineCall(ranks));
    calls.push_back(call);
  }
  return calls;
}

}  // namespace

const char* Name(TimedKernel kernel) {
  constexpr const char* kNames[] = {"moments", "merge", "normalize",
                                    "backward reduce", "backward input"};
  return kNames[static_cast<size_t>(kernel)];
}

RankTurn Missing(const absl::Status& why) {
  RankTurn turn;
  turn.missing = std::string(why.message());
  return turn;
}

absl::StatusOr<RankTurn> OrMissing(absl::StatusOr<RankTurn> turn) {
  if (turn.ok() || !absl::IsUnimplemented(turn.status())) return turn;
  return Missing(turn.status());
}

double CallSplit::Kernels() const {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0);
}

void CallSplit::Add(const CallSplit& more, double share) {
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i] += share * more.kernels[i];
  }
  communication += share * more.communication;
  wait += share * more.wait;
  other += share * more.other;
}

absl::StatusOr<TeamTurn> CombineTurns(std::span<const RankTurn> turns) {
  TeamTurn all;
  for (const RankTurn& turn : turns) {
    all.wrong += turn.wrong;
    if (all.note.empty()) all.note = turn.note;
    if (all.gpu.empty()) all.gpu = turn.gpu;
    all.shared_gpu = all.shared_gpu || turn.shared_gpu != 0;
    if (all.missing.empty()) all.missing = turn.missing;
  }
  if (!all.missing.empty()) return all;
  LOCKSTEP_ASSIGN_OR_RETURN(all.forward,
                            CombineCalls(turns, &RankTurn::forward));
  LOCKSTEP_ASSIGN_OR_RETURN(all.backward,
                            CombineCalls(turns, &RankTurn::backward));
  return all;
}

// The order of turns.
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
                     TeamTurn& measured) {
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

const TeamTurn* MeasuredTurns::Find(SyncBnSubject subject) const {
  for (const TeamTurn& measured : subjects) {
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
