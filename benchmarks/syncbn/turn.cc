#include "benchmarks/syncbn/turn.h"

#include <algorithm>
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
    double other = seconds;
    all.seconds = std::max(all.seconds, seconds);
    for (size_t i = 0; i < messages; ++i) {
      const MessageTimes& message = rank->messages[i];
      all.wait += share * (complete[i] - message.entered);
      all.communication += share * (message.left - complete[i]);
      other -= message.left - message.entered;
    }
    for (size_t i = 0; i < all.kernels.size(); ++i) {
      all.kernels[i] += share * rank->kernels[i];
      other -= rank->kernels[i];
    }
    all.other += share * other;
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
  switch (kernel) {
    case TimedKernel::kMoments:
      return "moments";
    case TimedKernel::kMerge:
      return "merge";
    case TimedKernel::kNormalize:
      return "normalize";
    case TimedKernel::kBackwardReduce:
      return "backward reduce";
    case TimedKernel::kBackwardInput:
      break;
  }
  return "backward input";
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

double TeamCall::Kernels() const {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0);
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

}  // namespace lockstep::benchmarks
