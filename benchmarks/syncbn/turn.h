// The turns of the command `syncbn`: what the ranks are told, what they
// measure, and in which order subjects take them.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/plan.h"

namespace lockstep::benchmarks {

// Travels between processes of one machine as it is.
struct SyncBnRequest {
  SyncBnSubject subject = SyncBnSubject::kLocal;
  int32_t network = 0;  // 1: a step of ResNet-18 on layer.n images.
  LayerSpec layer;
  int32_t warmup = 0;
  int32_t iterations = 1;  // At least 1.

  friend bool operator==(const SyncBnRequest&, const SyncBnRequest&) = default;
};

// The kernels of BatchNormKernels that take time.
enum class TimedKernel : int32_t {
  kMoments,
  kMerge,
  kNormalize,
  kBackwardReduce,
  kBackwardInput,
};
inline constexpr int kTimedKernels = 5;

const char* Name(TimedKernel kernel);

// Seconds by TimedKernel.
using KernelSeconds = std::array<double, kTimedKernels>;

// A message, as one rank saw it, by SteadySeconds.
struct MessageTimes {
  double entered = 0;
  double left = 0;
  int64_t bytes = 0;  // That this rank gave.

  friend bool operator==(const MessageTimes&, const MessageTimes&) = default;
};

// A call on one rank: a pass of a layer, or a step of the network.
struct CallTimes {
  double begin = 0;  // When all ranks had met.
  double end = 0;
  KernelSeconds kernels = {};
  std::vector<MessageTimes> messages = {};

  static auto Members(auto& self) {
    return std::tie(self.begin, self.end, self.kernels, self.messages);
  }
  friend bool operator==(const CallTimes&, const CallTimes&) = default;
};

// What a rank answers.
struct RankTurn {
  std::vector<CallTimes> forward;   // Or the steps of the network, or copies.
  std::vector<CallTimes> backward;  // Empty for those.
  int64_t wrong = 0;                // Elements that are not right.
  std::string note;                 // Who it is, of a peer.
  std::string gpu;                  // Its name, if it was measured on one.
  int32_t shared_gpu = 0;           // 1: another rank has the same GPU.
  std::string missing;  // Why it cannot be measured; then no calls are set.

  static auto Members(auto& self) {
    return std::tie(self.forward, self.backward, self.wrong, self.note,
                    self.gpu, self.shared_gpu, self.missing);
  }
  friend bool operator==(const RankTurn&, const RankTurn&) = default;
};

// The answer of a rank that cannot measure it, for that reason.
RankTurn Missing(const absl::Status& why);
// The same for the kUnimplemented of a layer that lacks a type; `turn` else.
absl::StatusOr<RankTurn> OrMissing(absl::StatusOr<RankTurn> turn);

// Where a call goes: means over the ranks, which add up to the mean rank's
// time. A rank waits from entering a message to when the last rank enters it,
// and communicates from then to when it leaves.
struct CallSplit {
  KernelSeconds kernels = {};
  double communication = 0;
  double wait = 0;
  double other = 0;

  double Kernels() const;
  double Sum() const { return Kernels() + communication + wait + other; }
  void Add(const CallSplit& more, double share);  // Adds share * more.
};

// A call, all ranks together.
struct TeamCall {
  double seconds = 0;  // On its slowest rank.
  CallSplit split = {};
  int64_t messages = 0;
  int64_t message_bytes = 0;  // That a rank gave in all of them.
};

// A turn, or all turns, of one subject.
struct TeamTurn {
  SyncBnSubject subject = SyncBnSubject::kLocal;  // Of what MeasuredTurns has.
  std::vector<TeamCall> forward = {};
  std::vector<TeamCall> backward = {};
  int64_t wrong = 0;  // On all ranks.
  std::string note = {};
  std::string gpu = {};
  bool shared_gpu = false;   // Of any ranks.
  std::string missing = {};  // Why it was not measured (any more).
};

// turns: by rank, at least one. What is missing on one rank is missing. Error:
// kDataLoss if the ranks timed different numbers of calls or messages.
absl::StatusOr<TeamTurn> CombineTurns(std::span<const RankTurn> turns);

struct MeasuredTurns {
  int rounds = 0;
  std::vector<TeamTurn> subjects;  // As planned.

  // Of that subject, or null if it was not planned.
  const TeamTurn* Find(SyncBnSubject subject) const;
};

using TakeSyncBnTurn =
    std::function<absl::StatusOr<TeamTurn>(const SyncBnRequest&)>;

// Measures a layer of the shape, or a step of the network, in rounds
// (harness/rounds.h): settings.rounds, or 3 to 200 within its part of
// settings.seconds. A subject that is missing gets no further turn. Errors:
// those of a turn, beginning with the subject's name.
absl::StatusOr<MeasuredTurns> MeasureLayer(const SyncBnSettings& settings,
                                           const LayerShape& shape,
                                           const TakeSyncBnTurn& take_turn,
                                           const ClockFunction& clock);
absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_
