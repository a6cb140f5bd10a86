#include "benchmarks/step/settings.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kMaxBatch = 1 << 16;
constexpr int64_t kMaxImageSize = 1 << 12;
constexpr int64_t kMaxClasses = 1 << 20;
constexpr int kMaxThreads = 256;

// Splits a list of networks. "vit:patch=4,depth=6,lenet" names two: a part that
// has a '=' and no ':' is an option of the network before it.
std::vector<std::string> SplitSpecs(absl::string_view models) {
  std::vector<std::string> specs;
  for (const absl::string_view part : absl::StrSplit(models, ',')) {
    if (!specs.empty() && absl::StrContains(part, '=') &&
        !absl::StrContains(part, ':')) {
      absl::StrAppend(&specs.back(), ",", part);
    } else {
      specs.emplace_back(part);
    }
  }
  return specs;
}

// Returns the batches of a network's steps: --batch, or the network's own.
// resnet18_d2l has two, because the project has a bar for each.
std::vector<int64_t> BatchesOf(const NetworkEntry& entry,
                               const StepSettings& settings) {
  if (settings.batch > 0) return {settings.batch};
  if (entry.name == "resnet18_d2l") return {entry.benchmark_batch, 16};
  return {entry.benchmark_batch};
}

}  // namespace

bool DrawsMasks(const Network& network) {
  return std::ranges::any_of(
      network.operations(), [](const Network::Operation& operation) {
        const auto* const attention = std::get_if<AttentionOp>(&operation.kind);
        const auto* const add = std::get_if<AddOp>(&operation.kind);
        return std::holds_alternative<DropoutOp>(operation.kind) ||
               (attention != nullptr && attention->dropout > 0) ||
               (add != nullptr && add->drop_path > 0);
      });
}

std::string NetworkName(const StepCase& one) {
  return absl::StrCat(one.spec, ", batch ", one.batch, ", ", one.input.channels,
                      "x", one.input.height, "x", one.input.width);
}

std::string Name(const StepCase& one) {
  return absl::StrCat(NetworkName(one), ", ",
                      one.device == ComputeDevice::kCuda
                          ? "GPU"
                          : report::Counted(one.threads, "thread"),
                      ", ", Name(one.precision));
}

std::string OursName(ConvolutionAlgorithm convolution) {
  return convolution == ConvolutionAlgorithm::kAuto
             ? "ours"
             : absl::StrCat("ours, ", Name(convolution));
}

absl::StatusOr<std::vector<StepCase>> CasesOf(const StepSettings& settings) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--batch", settings.batch, 0, kMaxBatch));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--in_channels", settings.channels, 0, 64));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--image_size", settings.image_size, 0, kMaxImageSize));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--num_classes", settings.classes, 1, kMaxClasses));
  std::vector<StepCase> cases;
  for (const std::string& spec : SplitSpecs(settings.models)) {
    const absl::StatusOr<NetworkEntry> entry = FindNetworkEntry(spec);
    if (!entry.ok()) {
      return Named(absl::StrCat("--models: ", spec), entry.status());
    }
    StepCase one = {.spec = spec,
                    .input = entry->benchmark_input(),
                    .device = settings.device,
                    .convolutions = settings.convolutions};
    if (settings.channels > 0) one.input.channels = settings.channels;
    if (settings.image_size > 0) {
      one.input.height = one.input.width = settings.image_size;
    }
    one.input.classes = settings.classes;
    const absl::StatusOr<Network> network = CreateNetwork(spec, one.input);
    if (!network.ok()) {
      return Named(absl::StrCat("--models: ", spec), network.status());
    }
    if (DrawsMasks(*network)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--models: ", spec, ": no peer draws the same dropout"));
    }
    for (const int64_t batch : BatchesOf(*entry, settings)) {
      for (const int threads : settings.threads) {
        for (const ConvolutionPrecision precision : settings.precisions) {
          one.batch = batch;
          one.threads = threads;
          one.precision = precision;
          cases.push_back(one);
        }
      }
    }
  }
  return cases;
}

absl::StatusOr<std::vector<ConvolutionPrecision>> ParsePrecisions(
    absl::string_view flag, absl::string_view names) {
  using Precision = ConvolutionPrecision;
  NamedValues<Precision> all;
  for (const Precision each : {Precision::kFloat32, Precision::kTf32,
                               Precision::kBFloat16, Precision::kFloat16}) {
    all.emplace_back(Name(each), each);
  }
  return ParseNames(flag, names, all);
}

absl::Status ParseStepLists(absl::string_view threads, absl::string_view types,
                            absl::string_view convolutions,
                            absl::string_view peers, StepSettings& settings) {
  settings.threads.clear();
  for (const absl::string_view item : absl::StrSplit(threads, ',')) {
    int count = 0;
    if (!absl::SimpleAtoi(item, &count) || count < 1 || count > kMaxThreads) {
      return absl::InvalidArgumentError(
          absl::StrCat("--threads has '", item, "', must be numbers from 1 to ",
                       kMaxThreads, ", separated by commas"));
    }
    settings.threads.push_back(count);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(settings.precisions,
                            ParsePrecisions("--types", types));
  const bool on_gpu = settings.device == ComputeDevice::kCuda;
  for (const ConvolutionPrecision precision : settings.precisions) {
    if (on_gpu || precision == ConvolutionPrecision::kFloat32 ||
        precision == ConvolutionPrecision::kBFloat16) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--types: ", Name(precision), " is for GPUs (--device=cuda)"));
  }
  settings.convolutions.clear();
  for (const absl::string_view item : absl::StrSplit(convolutions, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(const ConvolutionAlgorithm algorithm,
                              ParseConvolution(item));
    if (std::ranges::count(settings.convolutions, algorithm) == 0) {
      settings.convolutions.push_back(algorithm);
    }
  }
  settings.eager = settings.compile = settings.graph = settings.system = false;
  if (peers.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<bool StepSettings::*> chosen,
      ParseNames<bool StepSettings::*>("--peers", peers,
                                       {{"eager", &StepSettings::eager},
                                        {"compile", &StepSettings::compile},
                                        {"graph", &StepSettings::graph},
                                        {"system", &StepSettings::system}}));
  for (bool StepSettings::*const peer : chosen) settings.*peer = true;
  if (settings.graph && !on_gpu) {
    return absl::InvalidArgumentError(
        "--peers: graph is for GPUs (--device=cuda)");
  }
  return absl::OkStatus();
}

}  // namespace lockstep::benchmarks
