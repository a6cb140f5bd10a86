#include "benchmarks/syncbn/results.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

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

// The formulas.
namespace {

CallSpread SpreadOf(std::span<const double> seconds) {
  return {.median = Median(seconds),
          .p25 = Percentile(seconds, 25),
          .p75 = Percentile(seconds, 75),
          .min = Percentile(seconds, 0),
          .max = Percentile(seconds, 100),
          .samples = static_cast<int64_t>(seconds.size())};
}

std::vector<double> SecondsOf(const TeamTurn& measured, Pass pass) {
  std::vector<double> seconds;
  for (size_t i = 0; i < measured.forward.size(); ++i) {
    double sum = 0;
    if (pass != Pass::kBackward) sum += measured.forward[i].seconds;
    if (pass != Pass::kForward) sum += measured.backward[i].seconds;
    seconds.push_back(sum);
  }
  return seconds;
}

// Returns one ratio for each round: the median step of `measured` over that of
// `divisor`. Both have had a turn of the same length in every round.
std::vector<double> RatiosByRound(const TeamTurn& measured,
                                  const TeamTurn& divisor, int rounds) {
  const auto medians = [rounds](const TeamTurn& turns) {
    const std::vector<double> seconds = SecondsOf(turns, Pass::kForward);
    const size_t calls = seconds.size() / static_cast<size_t>(rounds);
    std::vector<double> by_round;
    for (size_t i = 0; i < static_cast<size_t>(rounds); ++i) {
      by_round.push_back(Median(std::span(seconds).subspan(i * calls, calls)));
    }
    return by_round;
  };
  std::vector<double> ratios = medians(measured);
  const std::vector<double> divisors = medians(divisor);
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] /= divisors[i];
  return ratios;
}

std::optional<CallSpread> OptionalSpread(const TeamTurn* measured, Pass pass) {
  if (measured == nullptr || measured->forward.empty()) return std::nullopt;
  return SpreadOf(SecondsOf(*measured, pass));
}

// Returns the mean over the calls from the first to the third quartile by time.
CallSplit MeanOfMiddleHalf(std::span<const TeamCall> calls) {
  std::vector<const TeamCall*> sorted;
  for (const TeamCall& call : calls) sorted.push_back(&call);
  std::ranges::sort(sorted, {}, &TeamCall::seconds);
  const size_t skip = sorted.size() / 4;
  const std::span<const TeamCall* const> middle =
      std::span(sorted).subspan(skip, sorted.size() - 2 * skip);
  CallSplit mean;
  for (const TeamCall* call : middle) {
    mean.Add(call->split, 1 / static_cast<double>(middle.size()));
  }
  return mean;
}

PassReport PassOf(const MeasuredTurns& measured, Pass pass) {
  const TeamTurn& sync = *measured.Find(SyncBnSubject::kSync);
  const TeamTurn& split = *measured.Find(SyncBnSubject::kSplit);
  PassReport report = {
      .pass = pass,
      .sync = SpreadOf(SecondsOf(sync, pass)),
      .local = OptionalSpread(measured.Find(SyncBnSubject::kLocal), pass)};
  report.own_local =
      SpreadOf(SecondsOf(*measured.Find(SyncBnSubject::kOwnLocal), pass));
  report.torch = OptionalSpread(measured.Find(SyncBnSubject::kTorch), pass);
  report.torch_sync =
      OptionalSpread(measured.Find(SyncBnSubject::kTorchSync), pass);
  report.message =
      Median(SecondsOf(*measured.Find(SyncBnSubject::kMessage), pass));
  if (pass != Pass::kBackward) {
    report.split.Add(MeanOfMiddleHalf(split.forward), 1);
  }
  if (pass != Pass::kForward) {
    report.split.Add(MeanOfMiddleHalf(split.backward), 1);
  }
  report.timers = Median(SecondsOf(split, pass)) / report.sync.median - 1;
  return report;
}

std::vector<KernelReport> KernelsOf(const KernelSeconds& seconds,
                                    int64_t tensor_bytes,
                                    double tensor_seconds) {
  // The tensors moved, as batch_norm_kernels.h states them, without ReLU and
  // residual.
  constexpr int64_t kTensorsMoved[] = {1, 0, 2, 2, 3};
  std::vector<KernelReport> kernels;
  for (size_t i = 0; i < seconds.size(); ++i) {
    KernelReport report = {.kernel = static_cast<TimedKernel>(i),
                           .seconds = seconds[i]};
    const int64_t tensors = kTensorsMoved[i];
    report.bytes = tensors * tensor_bytes;
    if (tensors > 0) {
      report.bound_seconds = static_cast<double>(tensors) * tensor_seconds;
    }
    kernels.push_back(report);
  }
  return kernels;
}

int64_t WrongOf(const MeasuredTurns& measured) {
  int64_t wrong = 0;
  for (const TeamTurn& subject : measured.subjects) {
    wrong += subject.wrong;
  }
  return wrong;
}

}  // namespace

const char* Name(Pass pass) {
  constexpr const char* kNames[] = {"forward", "backward", "both"};
  return kNames[static_cast<size_t>(pass)];
}

SyncBnSubject PassReport::FasterLocal() const {
  return local.has_value() && local->median <= own_local.median
             ? SyncBnSubject::kLocal
             : SyncBnSubject::kOwnLocal;
}

const CallSpread& PassReport::Faster() const {
  return FasterLocal() == SyncBnSubject::kLocal ? *local : own_local;
}

double LayerReport::OwnOfBound() const {
  constexpr double kTensors = 8;
  return kTensors / (2 * kCopiedTensors) * copy_seconds /
         passes[static_cast<size_t>(Pass::kBoth)].own_local.median;
}

LayerReport DeriveLayer(const SyncBnSettings& settings, const LayerShape& shape,
                        const MeasuredTurns& measured) {
  LayerReport report = {.shape = shape,
                        .rounds = measured.rounds,
                        .tensor_bytes = TensorBytes(settings, shape)};
  report.forward_message = RecordBytes(SpecOf(settings, shape));
  report.backward_message =
      2 * shape.c * SizeOf(StatisticsTypeOf(settings.type));
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kBoth}) {
    report.passes[static_cast<size_t>(pass)] = PassOf(measured, pass);
  }
  // The median copy, then the time to read or write one tensor.
  report.copy_seconds =
      Median(SecondsOf(*measured.Find(SyncBnSubject::kCopy), Pass::kForward));
  const double tensor_seconds = report.copy_seconds / (2 * kCopiedTensors);
  report.copy_bandwidth = static_cast<double>(settings.world_size) *
                          static_cast<double>(report.tensor_bytes) /
                          tensor_seconds;
  report.kernels =
      KernelsOf(report.passes[static_cast<size_t>(Pass::kBoth)].split.kernels,
                report.tensor_bytes, tensor_seconds);
  report.wrong = WrongOf(measured);
  const TeamTurn& sync = *measured.Find(SyncBnSubject::kSync);
  if (!sync.host_seconds.empty()) {
    report.host_seconds = Median(sync.host_seconds);
  }
  return report;
}

NetworkReport DeriveNetwork(const SyncBnSettings& settings,
                            const MeasuredTurns& measured) {
  const TeamTurn& split = *measured.Find(SyncBnSubject::kSplit);
  const auto spread = [&](SyncBnSubject subject) {
    return SpreadOf(SecondsOf(*measured.Find(subject), Pass::kForward));
  };
  const CallSpread sync = spread(SyncBnSubject::kSync);
  return {.batch = NetworkBatch(settings),
          .rounds = measured.rounds,
          .local = spread(SyncBnSubject::kLocal),
          .sync = sync,
          .ratio = SpreadOf(RatiosByRound(*measured.Find(SyncBnSubject::kSync),
                                          *measured.Find(SyncBnSubject::kLocal),
                                          measured.rounds)),
          .split = MeanOfMiddleHalf(split.forward),
          .timers = spread(SyncBnSubject::kSplit).median / sync.median - 1,
          .messages = split.forward[0].messages,
          .message_bytes = split.forward[0].message_bytes,
          .wrong = WrongOf(measured)};
}

void AddNotes(const MeasuredTurns& measured, SyncBnReport& report) {
  for (const TeamTurn& subject : measured.subjects) {
    if (subject.subject == SyncBnSubject::kTorch && report.peer.empty()) {
      report.peer = subject.note;
    }
    if (report.gpu.empty()) report.gpu = subject.gpu;
    report.shared_gpu = report.shared_gpu || subject.shared_gpu;
    report.sm_mhz = LowerClock(report.sm_mhz, subject.sm_mhz);
    if (subject.missing.empty()) continue;
    const std::string missing =
        absl::StrCat(Name(subject.subject), ": ", subject.missing);
    if (std::ranges::count(report.missing, missing) == 0) {
      report.missing.push_back(missing);
    }
  }
}

bool StepHasBar(const SyncBnSettings& settings) {
  const TrainedNetwork& trained = settings.network;
  return !settings.gpu && trained.spec == "resnet18_d2l" &&
         trained.input.channels == 1 && trained.input.height == 28 &&
         trained.input.width == 28 && NetworkBatch(settings) == kNetworkBatch;
}

std::string WhyNoBar(const SyncBnReport& report) {
  const SyncBnSettings& settings = report.settings;
  if (settings.gpu) {
    return report.shared_gpu ? "it is for ranks with a GPU each" : "";
  }
  if (settings.world_size != kBarWorldSize) {
    return absl::StrCat("it is for ", kBarWorldSize, " ranks");
  }
  if (settings.type != DataType::kFloat32) return "it is for float32";
  if (settings.world_size > report.origin.machine.cores) {
    return absl::StrCat("it is for ranks with a core each, and ",
                        settings.world_size, " ranks share ",
                        report.origin.machine.cores);
  }
  if (StepHasBar(settings)) return "";
  for (const LayerReport& layer : report.layers) {
    if (layer.shape.set == ShapeSet::kResNet18) return "";
  }
  return absl::StrCat("it is for resnet18_d2l's shapes, and for its step on ",
                      kNetworkBatch, " images of 1x28x28");
}

int64_t CountWrong(const SyncBnReport& report) {
  int64_t wrong = report.network.has_value() ? report.network->wrong : 0;
  for (const LayerReport& layer : report.layers) wrong += layer.wrong;
  return wrong;
}

}  // namespace lockstep::benchmarks
