// The settings of the command `syncbn`: its flags as checked values, and the
// layer shapes, calls and memory that follow from them.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_SETTINGS_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/syncbn/network.h"
#include "models/networks/network.h"
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

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_SETTINGS_H_
