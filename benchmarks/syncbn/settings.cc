#include "benchmarks/syncbn/settings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/syncbn/network.h"
#include "collectives/communicator.h"
#include "models/networks/network.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kTurnBytes = 512 << 20;
constexpr int64_t kMostIterations = 100;

// Forward moves 3 tensors, backward 5 (batch_norm_kernels.h).
constexpr int64_t kTensorsMoved = 8;

// The tensors held: x, y, dy, dx and as much for the copy; and for PyTorch x,
// y, dy, dx and the tensors of its check.
constexpr int64_t kTensorsHeld = 8;
constexpr int64_t kTorchTensorsHeld = 6;

struct MapSize {
  int64_t h, w, c;
};

std::vector<MapSize> MapsOf(ShapeSet set) {
  switch (set) {
    case ShapeSet::kResNet18:
      return {{28, 28, 64}, {14, 14, 128}, {7, 7, 256}, {4, 4, 512}};
    case ShapeSet::kResNet50:
      return {{112, 112, 64}, {56, 56, 256}, {14, 14, 1024}, {7, 7, 2048}};
    case ShapeSet::kMobileNet:
      return {{112, 112, 32}, {56, 56, 144}, {14, 14, 384}, {7, 7, 1280}};
    case ShapeSet::kDetection:
      return {{200, 304, 256}, {100, 152, 256}, {25, 38, 256}};
  }
  return {};
}

}  // namespace

const char* Name(ShapeSet set) {
  constexpr const char* kNames[] = {"resnet18_d2l", "resnet50", "mobilenet",
                                    "detection"};
  return kNames[static_cast<size_t>(set)];
}

std::string Name(const LayerShape& shape) {
  return absl::StrCat(shape.h, "x", shape.w, "x", shape.c);
}

absl::StatusOr<std::vector<ShapeSet>> ParseShapeSets(absl::string_view text) {
  if (text.empty()) return std::vector<ShapeSet>();
  return ParseNames<ShapeSet>("--shapes", text,
                              {{"resnet18_d2l", ShapeSet::kResNet18},
                               {"resnet50", ShapeSet::kResNet50},
                               {"mobilenet", ShapeSet::kMobileNet},
                               {"detection", ShapeSet::kDetection}});
}

absl::Status ParseSyncBnBackend(absl::string_view text,
                                SyncBnSettings& settings) {
  struct Kind {
    RankKind ranks;
    bool gpu;
  };
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Kind kind,
      ParseName<Kind>("--backend", text,
                      {{"processes", {RankKind::kProcesses, false}},
                       {"threads", {RankKind::kThreads, false}},
                       {"nccl", {RankKind::kProcesses, true}}}));
  settings.ranks = kind.ranks;
  settings.gpu = kind.gpu;
  return absl::OkStatus();
}

std::string BackendName(const SyncBnSettings& settings) {
  return settings.gpu ? "nccl" : std::string(Name(settings.ranks));
}

absl::StatusOr<Layout> ParseLayout(absl::string_view text) {
  return ParseName<Layout>("--layout", text,
                           {{"nhwc", Layout::kNhwc},
                            {"nchw", Layout::kNchw},
                            {"nchw16c", Layout::kNchw16c}});
}

absl::StatusOr<DataType> ParseActivationType(absl::string_view text) {
  return ParseName<DataType>("--dtype", text,
                             {{"float32", DataType::kFloat32},
                              {"bfloat16", DataType::kBFloat16},
                              {"float16", DataType::kFloat16}});
}

absl::StatusOr<bool> ParseSyncBnPeers(absl::string_view text) {
  if (text.empty()) return false;
  return ParseName<bool>("--peers", text, {{"torch", true}});
}

absl::Status Validate(const SyncBnSettings& settings) {
  for (const absl::Status& status :
       {CheckRange("--world_size", settings.world_size, 1, kMaxWorldSize),
        CheckRange("--per_rank_batch", settings.per_rank_batch, 0, 1 << 20),
        CheckRange("--rounds", settings.rounds, 0, 1000),
        CheckSeconds("--seconds", settings.seconds)}) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  if (settings.gpu && settings.layout == Layout::kNchw16c) {
    return absl::InvalidArgumentError(
        "--layout: nchw16c is for the CPU, --backend=nccl has nhwc and nchw");
  }
  if (!settings.network.empty()) {
    return DescribeTrained(settings.network).status();
  }
  if (settings.sets.empty()) {
    return absl::InvalidArgumentError(
        "--shapes: empty, with --network=none: nothing is left to measure");
  }
  return absl::OkStatus();
}

int64_t NetworkBatch(const SyncBnSettings& settings) {
  return settings.per_rank_batch > 0 ? settings.per_rank_batch : kNetworkBatch;
}

std::vector<LayerShape> ShapesOf(const SyncBnSettings& settings) {
  std::vector<LayerShape> shapes;
  for (const ShapeSet set : settings.sets) {
    const int64_t usual = set == ShapeSet::kDetection ? 2 : 32;
    const int64_t n =
        settings.per_rank_batch > 0 ? settings.per_rank_batch : usual;
    for (const MapSize& map : MapsOf(set)) {
      shapes.push_back(
          {.set = set, .n = n, .h = map.h, .w = map.w, .c = map.c});
    }
  }
  return shapes;
}

int64_t TensorBytes(const SyncBnSettings& settings, const LayerShape& shape) {
  return shape.n * shape.h * shape.w * shape.c * SizeOf(settings.type);
}

int64_t MemoryNeeded(const SyncBnSettings& settings, const LayerShape& shape) {
  const int64_t tensors =
      kTensorsHeld + (settings.torch ? kTorchTensorsHeld : 0);
  return settings.world_size * tensors * TensorBytes(settings, shape);
}

int64_t NetworkMemoryNeeded(const SyncBnSettings& settings,
                            const Network& network) {
  const int64_t batch = NetworkBatch(settings);
  const int64_t rank = settings.gpu
                           ? BatchNormBytes(network, batch, settings.type)
                           : TrainingBytes(network, batch);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return rank > kMost / settings.world_size ? kMost
                                            : rank * settings.world_size;
}

absl::Status CheckMemory(const SyncBnSettings& settings, int64_t room) {
  const std::string ranks =
      absl::StrCat(" on ", settings.world_size,
                   settings.world_size == 1 ? " rank" : " ranks");
  const auto what = [&ranks](int64_t images, const std::string& of) {
    return absl::StrCat("--per_rank_batch: ", images,
                        images == 1 ? " image of " : " images of ", of, ranks);
  };
  for (const LayerShape& shape : ShapesOf(settings)) {
    LOCKSTEP_RETURN_IF_ERROR(CheckMemory(what(shape.n, Name(shape)),
                                         MemoryNeeded(settings, shape), room));
  }
  if (settings.network.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            DescribeTrained(settings.network));
  const std::string images = absl::StrCat(ImageName(settings.network.input),
                                          ", to train ", settings.network.spec);
  return CheckMemory(what(NetworkBatch(settings), images),
                     NetworkMemoryNeeded(settings, network), room);
}

int TimedIterations(const SyncBnSettings& settings, const LayerShape& shape) {
  const int64_t moved = kTensorsMoved * TensorBytes(settings, shape);
  return static_cast<int>(
      std::clamp<int64_t>(kTurnBytes / moved, 1, kMostIterations));
}

}  // namespace lockstep::benchmarks
