#include "benchmarks/syncbn/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kTurnBytes = 512 << 20;
constexpr int64_t kMostIterations = 100;

// Forward moves 3 tensors, backward 5 (batch_norm_kernels.h).
constexpr int64_t kTensorsMoved = 8;

// x, y, dy, dx; as much for the copy; and PyTorch's x, y, dy, dx and what it
// checks.
constexpr int64_t kTensorsHeld = 8;
constexpr int64_t kTorchTensorsHeld = 6;

// Of one of a rank's three replicas of ResNet-18: 11.2 million parameters and
// as many gradients, and what oneDNN repacks of them; and for each image the
// activations of a step, their gradients and work space. Measured as the growth
// of a process, and rounded up; plan_test.cc holds it to that.
constexpr int64_t kReplicas = 3;
constexpr int64_t kReplicaBytes = 120 << 20;
constexpr int64_t kImageBytes = 4 << 20;

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
  constexpr const char* kNames[] = {"resnet18", "resnet50", "mobilenet",
                                    "detection"};
  return kNames[static_cast<size_t>(set)];
}

std::string Name(const LayerShape& shape) {
  return absl::StrCat(shape.h, "x", shape.w, "x", shape.c);
}

absl::StatusOr<std::vector<ShapeSet>> ParseShapeSets(absl::string_view text) {
  if (text.empty()) return std::vector<ShapeSet>();
  return ParseNames<ShapeSet>("--shapes", text,
                              {{"resnet18", ShapeSet::kResNet18},
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
                           {{"nhwc", Layout::kNhwc}, {"nchw", Layout::kNchw}});
}

absl::StatusOr<DataType> ParseActivationType(absl::string_view text) {
  return ParseName<DataType>("--dtype", text,
                             {{"float32", DataType::kFloat32},
                              {"bfloat16", DataType::kBFloat16},
                              {"float16", DataType::kFloat16}});
}

absl::StatusOr<bool> ParseNetwork(absl::string_view text) {
  return ParseName<bool>("--network", text,
                         {{"resnet18", true}, {"none", false}});
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
  if (settings.sets.empty() && !settings.network) {
    return absl::InvalidArgumentError(
        "--shapes: empty, and --network=none: nothing is left to measure");
  }
  if (settings.sets.empty() && settings.gpu) {
    return absl::InvalidArgumentError(
        "--shapes: empty, and --backend=nccl trains no network: nothing is "
        "left to measure");
  }
  return absl::OkStatus();
}

std::vector<std::string> LeaveOutForGpu(SyncBnSettings& settings) {
  std::vector<std::string> left_out;
  if (!settings.gpu) return left_out;
  if (settings.network) {
    left_out.push_back("ResNet-18: it is not trained on GPUs yet");
  }
  if (settings.torch) {
    left_out.push_back("PyTorch: it is not timed on GPUs yet");
  }
  settings.network = false;
  settings.torch = false;
  return left_out;
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

int64_t NetworkMemoryNeeded(const SyncBnSettings& settings) {
  return settings.world_size * kReplicas *
         (kReplicaBytes + NetworkBatch(settings) * kImageBytes);
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
  if (!settings.network) return absl::OkStatus();
  return CheckMemory(what(NetworkBatch(settings), "28x28, to train ResNet-18"),
                     NetworkMemoryNeeded(settings), room);
}

int TimedIterations(const SyncBnSettings& settings, const LayerShape& shape) {
  const int64_t moved = kTensorsMoved * TensorBytes(settings, shape);
  return static_cast<int>(
      std::clamp<int64_t>(kTurnBytes / moved, 1, kMostIterations));
}

const char* Name(SyncBnSubject subject) {
  constexpr const char* kNames[] = {
      "local BN", "SyncBN", "SyncBN with timers", "own local BN", "message",
      "copy",     "PyTorch"};
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

}  // namespace lockstep::benchmarks
