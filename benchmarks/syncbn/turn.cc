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
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/network.h"
#include "collectives/communicator.h"
#include "models/networks/network.h"

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
        "--shapes: empty, and --network=none: nothing is left to measure");
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

// The order of turns.
namespace {

constexpr int kMostRounds = 200;

// The network's share of the time, if layers are measured too.
constexpr double kNetworkShare = 0.3;

constexpr int kWarmup = 2;

// Adds one turn to the measured turns of its subject.
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
  measured.sm_mhz = LowerClock(measured.sm_mhz, turn->sm_mhz);
  const auto append = [](const auto& from, auto& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(turn->forward, measured.forward);
  append(turn->backward, measured.backward);
  append(turn->host_seconds, measured.host_seconds);
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
        // On a CPU large tensors leave nothing in a cache that a warm-up could
        // prepare. On a GPU a layer allocates in its first call.
        const bool large = request.iterations == 1 && !settings.gpu;
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
  if (settings.torch && settings.gpu) {
    subjects.push_back(SyncBnSubject::kTorchSync);
  }
  SyncBnRequest request = {.layer = SpecOf(settings, shape),
                           .iterations = TimedIterations(settings, shape)};
  const double share = settings.network.empty() ? 1 : 1 - kNetworkShare;
  const auto shapes = static_cast<double>(ShapesOf(settings).size());
  return MeasureTurns(settings, share * settings.seconds / shapes, request,
                      subjects, take_turn, clock);
}

absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock) {
  const SyncBnSubject subjects[] = {SyncBnSubject::kLocal, SyncBnSubject::kSync,
                                    SyncBnSubject::kSplit};
  SyncBnRequest request = {.network = 1,
                           .layer = {.n = NetworkBatch(settings),
                                     .layout = settings.layout,
                                     .type = settings.type,
                                     .seed = settings.seed}};
  const double share = settings.sets.empty() ? 1 : kNetworkShare;
  return MeasureTurns(settings, share * settings.seconds, request, subjects,
                      take_turn, clock);
}

}  // namespace lockstep::benchmarks
