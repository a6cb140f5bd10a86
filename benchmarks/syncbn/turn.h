// The settings of the command `syncbn`, and its turns: the requests to ranks,
// their answers, and the order in which subjects take turns.
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
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/network.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

// The networks that layer shapes are taken from.
enum class ShapeSet : int32_t {
  kResNet18,   // The seed's, on images of 28 x 28.
  kResNet50,   // On images of 224 x 224; some of its shapes.
  kMobileNet,  // MobileNet V2, likewise.
  kDetection,  // A feature pyramid over images of 800 x 1216.
};

const char* Name(ShapeSet set);

// The input of one batch norm layer on each rank.
struct LayerShape {
  ShapeSet set = ShapeSet::kResNet18;
  int64_t n = 0;
  int64_t h = 0;
  int64_t w = 0;
  int64_t c = 0;

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

// Returns "28x28x64": height, width, channels.
std::string Name(const LayerShape& shape);

struct SyncBnSettings {
  int world_size = 2;
  RankKind ranks = RankKind::kProcesses;
  bool gpu = false;                 // One GPU for each rank, a process (nccl).
  std::vector<ShapeSet> sets = {};  // May be empty.
  int64_t per_rank_batch = 0;       // Images on each rank; 0: as ShapesOf says.
  Layout layout = Layout::kNhwc;
  DataType type = DataType::kFloat32;
  TrainedNetwork network = {};  // Its steps are timed, unless it is empty.
  bool torch = true;            // Whether PyTorch is looked for.
  int rounds = 0;       // Turns of each subject; 0: as `seconds` allows.
  double seconds = 60;  // For everything, if rounds is 0.
  uint64_t seed = 0;
};

// Parse the value of a flag. Errors: kInvalidArgument, beginning with the flag.
// Lists have each item once, in the order given.
absl::StatusOr<std::vector<ShapeSet>> ParseShapeSets(absl::string_view text);
// Accepts processes, threads, nccl; sets ranks and gpu.
absl::Status ParseSyncBnBackend(absl::string_view text,
                                SyncBnSettings& settings);
absl::StatusOr<Layout> ParseLayout(absl::string_view text);
absl::StatusOr<DataType> ParseActivationType(absl::string_view text);
absl::StatusOr<bool> ParseSyncBnPeers(absl::string_view text);  // torch or ""

std::string BackendName(const SyncBnSettings& settings);

// Checks the settings. Errors: kInvalidArgument, beginning with the flag that
// is wrong; for the network DescribeTrained's.
absl::Status Validate(const SyncBnSettings& settings);

// The default number of images on each rank in a step of the network.
inline constexpr int64_t kNetworkBatch = 16;
int64_t NetworkBatch(const SyncBnSettings& settings);

// Returns the shapes of all sets, in their order. By default each shape has 32
// images on each rank; shapes of detection have 2.
std::vector<LayerShape> ShapesOf(const SyncBnSettings& settings);

// Returns the bytes of one activation tensor of the shape: B in
// batch_norm_kernels.h.
int64_t TensorBytes(const SyncBnSettings& settings, const LayerShape& shape);

// Return the most bytes of the host's memory that all ranks together use for a
// shape, and for the network.
int64_t MemoryNeeded(const SyncBnSettings& settings, const LayerShape& shape);
int64_t NetworkMemoryNeeded(const SyncBnSettings& settings,
                            const Network& network);

// Checks that each shape, and the network if it is trained, needs at most
// `room` bytes. Errors: kInvalidArgument, beginning with --per_rank_batch;
// DescribeTrained's.
absl::Status CheckMemory(const SyncBnSettings& settings, int64_t room);

// Returns the number of timed forward and backward passes in a turn: as many as
// move some 512 MiB, at most 100, at least 1.
int TimedIterations(const SyncBnSettings& settings, const LayerShape& shape);

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

struct MeasuredTurns {
  int rounds = 0;
  std::vector<TeamTurn> subjects;  // In the planned order.

  // Returns the turns of that subject, or null if it was not planned.
  const TeamTurn* Find(SyncBnSubject subject) const;
};

using TakeSyncBnTurn =
    std::function<absl::StatusOr<TeamTurn>(const SyncBnRequest&)>;

// Measure a layer of the shape, or a step of the network, in rounds
// (harness/rounds.h). The number of rounds is settings.rounds, or 3 to 200
// within its part of settings.seconds. A subject that is missing gets no
// further turn. Errors: those of a turn, beginning with the subject's name.
absl::StatusOr<MeasuredTurns> MeasureLayer(const SyncBnSettings& settings,
                                           const LayerShape& shape,
                                           const TakeSyncBnTurn& take_turn,
                                           const ClockFunction& clock);
absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_TURN_H_
