#include "benchmarks/syncbn/turn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/syncbn/settings.h"

namespace lockstep::benchmarks {

const char* Name(SyncBnSubject subject) {
  constexpr const char* kNames[] = {
      "local BN", "SyncBN",  "SyncBN with timers", "own local BN", "message",
      "copy",     "PyTorch", "PyTorch's SyncBN"};
  return kNames[static_cast<size_t>(subject)];
}

LayerSpec SpecOf(const SyncBnSettings& settings, const LayerShape& shape) {
  return {.n = shape.n,
          .h = shape.h,
          .w = shape.w,
          .c = shape.c,
          .layout = settings.layout,
          .type = settings.type,
          .seed = settings.seed};
}

namespace {

// Combines the times of one call on all ranks.
absl::StatusOr<TeamCall> CombineCall(std::span<const CallTimes* const> ranks) {
  TeamCall all;
  const size_t messages = ranks[0]->messages.size();
  // When the last rank entered.
  std::vector<double> complete(messages,
                               -std::numeric_limits<double>::infinity());
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

int32_t LowerClock(int32_t a, int32_t b) {
  return a == 0 || (b != 0 && b < a) ? b : a;
}

RankTurn Missing(const absl::Status& why) {
  return {.missing = std::string(why.message())};
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
  double host_seconds = 0;
  for (const RankTurn& turn : turns) {
    all.wrong += turn.wrong;
    if (all.note.empty()) all.note = turn.note;
    if (all.gpu.empty()) all.gpu = turn.gpu;
    all.shared_gpu = all.shared_gpu || turn.shared_gpu != 0;
    all.sm_mhz = LowerClock(all.sm_mhz, turn.sm_mhz);
    host_seconds = std::max(host_seconds, turn.host_seconds);
    if (all.missing.empty()) all.missing = turn.missing;
  }
  if (!all.missing.empty()) return all;
  if (host_seconds > 0) all.host_seconds = {host_seconds};
  LOCKSTEP_ASSIGN_OR_RETURN(all.forward,
                            CombineCalls(turns, &RankTurn::forward));
  LOCKSTEP_ASSIGN_OR_RETURN(all.backward,
                            CombineCalls(turns, &RankTurn::backward));
  return all;
}

}  // namespace lockstep::benchmarks
