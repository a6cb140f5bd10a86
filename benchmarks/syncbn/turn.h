// The turns of the command `syncbn`: the requests to ranks, their answers, and
// the combination of the answers of all ranks.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/settings.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

// The subjects that take turns at a layer shape. Only the first three take
// turns at the network; their local batch norm there uses our own kernels.
enum class SyncBnSubject : int32_t {
  kLocal,      // The library's batch norm over each rank's own batch, on all
               // ranks at a time: oneDNN's, on a GPU cuDNN's.
  kSync,       // SyncBatchNorm.
  kSplit,      // SyncBatchNorm with timers inside.
  kOwnLocal,   // SyncBatchNorm's kernels over each rank's own batch.
  kMessage,    // SyncBatchNorm's messages alone; ranks arrive together.
  kCopy,       // memcpy of x and dy, on all ranks at a time.
  kTorch,      // torch.nn.BatchNorm2d, on all ranks at a time.
  kTorchSync,  // torch.nn.SyncBatchNorm, on GPUs only.
};

const char* Name(SyncBnSubject subject);

// The number of tensors that a copy reads. It writes as many.
inline constexpr int64_t kCopiedTensors = 2;

// A layer with its inputs.
struct LayerSpec {
  int64_t n = 0;
  int64_t h = 0;
  int64_t w = 0;
  int64_t c = 0;
  Layout layout = Layout::kNhwc;
  DataType type = DataType::kFloat32;
  uint64_t seed = 0;

  ActivationShape shape() const {
    return {.n = n, .c = c, .hw = h * w, .layout = layout};
  }
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

LayerSpec SpecOf(const SyncBnSettings& settings, const LayerShape& shape);

// The request to a rank. It is sent between processes of one machine byte by
// byte.
struct SyncBnRequest {
  SyncBnSubject subject = SyncBnSubject::kLocal;
  int32_t network = 0;  // 1: a step of the network on layer.n images.
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

// A message, as one rank saw it, by SteadySeconds. A GPU has its own clock;
// there times count from when all ranks leave the message.
struct MessageTimes {
  double entered = 0;
  double left = 0;
  int64_t bytes = 0;  // The bytes from this rank.

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

// Returns the lower of two clocks in MHz. 0 means unknown and is ignored.
int32_t LowerClock(int32_t a, int32_t b);

// The answer of a rank.
struct RankTurn {
  std::vector<CallTimes> forward =
      {};  // Or the steps of the network, or copies.
  std::vector<CallTimes> backward = {};  // Empty for those.
  int64_t wrong = 0;                     // Wrong elements.
  std::string note = {};                 // For PyTorch: its version and path.
  std::string gpu = {};                  // The GPU's name, if measured on one.
  int32_t shared_gpu = 0;                // 1: another rank has the same GPU.
  int32_t sm_mhz = 0;  // The GPU's clock while it worked; 0: not known.
  // On a GPU: the host's mean time to queue a forward and a backward call, or a
  // step.
  double host_seconds = 0;
  std::string missing =
      {};  // Why it cannot be measured; then no calls are set.

  static auto Members(auto& self) {
    return std::tie(self.forward, self.backward, self.wrong, self.note,
                    self.gpu, self.shared_gpu, self.sm_mhz, self.host_seconds,
                    self.missing);
  }
  friend bool operator==(const RankTurn&, const RankTurn&) = default;
};

// Returns the answer of a rank that cannot measure, with the reason.
RankTurn Missing(const absl::Status& why);
// Returns Missing if a layer returned kUnimplemented because it lacks a type;
// otherwise returns `turn`.
absl::StatusOr<RankTurn> OrMissing(absl::StatusOr<RankTurn> turn);

// The parts of a call's time: means over the ranks, which add up to the mean
// rank's time. A rank waits from when it enters a message to when the last rank
// enters it. It communicates from then to when it leaves the message.
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
  int64_t message_bytes = 0;  // The bytes from one rank.
};

// A turn, or all turns, of one subject.
struct TeamTurn {
  SyncBnSubject subject = SyncBnSubject::kLocal;  // Set in MeasuredTurns.
  std::vector<TeamCall> forward = {};
  std::vector<TeamCall> backward = {};
  int64_t wrong = 0;  // On all ranks.
  std::string note = {};
  std::string gpu = {};
  bool shared_gpu = false;  // Whether any ranks share one.
  int32_t sm_mhz = 0;       // The lowest known clock; 0: none is known.
  // On GPUs: one number per turn, from the turn's slowest rank.
  std::vector<double> host_seconds = {};
  std::string missing = {};  // Why it was not measured (any more).
};

// Combines the turns of the ranks. turns: by rank, at least one. A subject that
// is missing on one rank is missing. Error: kDataLoss if the ranks timed
// different numbers of calls or messages.
absl::StatusOr<TeamTurn> CombineTurns(std::span<const RankTurn> turns);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_
