// What the command `syncbn` is asked to measure.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_PLAN_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "syncbn/activations.h"

namespace lockstep::benchmarks {

// Where layer shapes are from.
enum class ShapeSet : int32_t {
  kResNet18,   // As the seed has it, on images of 28 x 28.
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

// "28x28x64": height, width, channels.
std::string Name(const LayerShape& shape);

struct SyncBnSettings {
  int world_size = 2;
  RankKind ranks = RankKind::kProcesses;
  bool gpu = false;            // Each rank, a process, with one (nccl).
  std::vector<ShapeSet> sets;  // May be empty.
  int64_t per_rank_batch = 0;  // Images on each rank; 0: as ShapesOf says.
  Layout layout = Layout::kNhwc;
  DataType type = DataType::kFloat32;
  bool network = true;  // Whether ResNet-18 is trained too.
  bool torch = true;    // Whether PyTorch is looked for.
  int rounds = 0;       // Turns of each subject; 0: as `seconds` allows.
  double seconds = 60;  // For everything, if rounds is 0.
  uint64_t seed = 0;
};

// What a flag says. Errors: kInvalidArgument, beginning with the flag. Lists
// have each item once, in the order given.
absl::StatusOr<std::vector<ShapeSet>> ParseShapeSets(absl::string_view text);
// processes, threads, nccl: sets ranks and gpu.
absl::Status ParseSyncBnBackend(absl::string_view text,
                                SyncBnSettings& settings);
absl::StatusOr<Layout> ParseLayout(absl::string_view text);
absl::StatusOr<DataType> ParseActivationType(absl::string_view text);
absl::StatusOr<bool> ParseNetwork(absl::string_view text);  // resnet18, none
absl::StatusOr<bool> ParseSyncBnPeers(absl::string_view text);  // torch or ""

std::string BackendName(const SyncBnSettings& settings);

// Errors: kInvalidArgument, beginning with the flag that is wrong.
absl::Status Validate(const SyncBnSettings& settings);

// Leaves out what there is not on a GPU; says what, and why: a sentence each.
// Nothing if the backend is not nccl.
std::vector<std::string> LeaveOutForGpu(SyncBnSettings& settings);

// Images on each rank of a step of the network: these by default.
inline constexpr int64_t kNetworkBatch = 16;
int64_t NetworkBatch(const SyncBnSettings& settings);

// The shapes of all sets, in their order. By default each has 32 images on each
// rank, those of detection 2.
std::vector<LayerShape> ShapesOf(const SyncBnSettings& settings);

// The bytes of one activation tensor of the shape: B in batch_norm_kernels.h.
int64_t TensorBytes(const SyncBnSettings& settings, const LayerShape& shape);

// What all ranks together may come to use for a shape, and for the network, in
// the host's memory.
int64_t MemoryNeeded(const SyncBnSettings& settings, const LayerShape& shape);
int64_t NetworkMemoryNeeded(const SyncBnSettings& settings);

// Error: kInvalidArgument, beginning with --per_rank_batch, if a shape or the
// network, where it is trained, needs more than `room` bytes.
absl::Status CheckMemory(const SyncBnSettings& settings, int64_t room);

// Timed forward and backward passes of one turn: as many as move some 512 MiB,
// at most 100, at least 1.
int TimedIterations(const SyncBnSettings& settings, const LayerShape& shape);

// What takes turns at a layer shape; at the network the first three do, whose
// local batch norm is of our own kernels.
enum class SyncBnSubject : int32_t {
  kLocal,     // The library's batch norm over each rank's own batch, on all
              // ranks at a time: oneDNN's, on a GPU cuDNN's.
  kSync,      // SyncBatchNorm.
  kSplit,     // SyncBatchNorm with timers inside.
  kOwnLocal,  // SyncBatchNorm's kernels over each rank's own batch.
  kMessage,   // Nothing but its messages, of ranks that arrive together.
  kCopy,      // memcpy of x and dy, on all ranks at a time.
  kTorch,     // torch.nn.BatchNorm2d, on all ranks at a time.
};

const char* Name(SyncBnSubject subject);

// The tensors that a copy reads; it writes as many.
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

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_PLAN_H_
