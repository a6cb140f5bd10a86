#include "benchmarks/syncbn/network.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/data/transform.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kNone[] = "none";
constexpr int64_t kMaxChannels = 64;
constexpr int64_t kMaxClasses = 1 << 20;

// x, y, dy, dx.
constexpr int64_t kTensorsOfBatchNorm = 4;

// Returns the number of bytes, or 2^62 if it is larger.
int64_t Bytes(double bytes) {
  constexpr double kMost = 0x1p62;
  return static_cast<int64_t>(std::min(bytes, kMost));
}

int64_t ParameterCount(const Network& network) {
  int64_t count = 0;
  for (const TensorDescription& parameter : network.parameters()) {
    count += parameter.size();
  }
  return count;
}

}  // namespace

absl::StatusOr<TrainedNetwork> ParseTrainedNetwork(const NetworkFlags& flags) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--in_channels", flags.in_channels, 0, kMaxChannels));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--num_classes", flags.num_classes, 0, kMaxClasses));
  TransformOptions size;
  if (!flags.image_size.empty()) {
    const absl::Status status = ParseImageSize(flags.image_size, size);
    if (!status.ok()) {
      return FlagError("image_size", flags.image_size, status.message());
    }
  }
  if (flags.network == kNone) return TrainedNetwork{.spec = ""};
  if (flags.network.empty()) {
    return FlagError("network", "", "must be a network, or none");
  }
  const absl::StatusOr<NetworkEntry> entry = FindNetworkEntry(flags.network);
  if (!entry.ok()) {
    return FlagError("network", flags.network, entry.status().message());
  }
  TrainedNetwork trained = {.spec = flags.network,
                            .input = entry->benchmark_input()};
  NetworkInput& input = trained.input;
  if (size.height > 0) {
    input.height = size.height;
    input.width = size.width;
  }
  if (flags.in_channels > 0) input.channels = flags.in_channels;
  if (flags.num_classes > 0) input.classes = flags.num_classes;
  return trained;
}

std::vector<std::string> ArgumentsOf(const TrainedNetwork& trained) {
  if (trained.empty()) return {absl::StrCat("--network=", kNone)};
  return {absl::StrCat("--network=", trained.spec),
          absl::StrCat("--image_size=", ImageName(trained.input)),
          absl::StrCat("--in_channels=", trained.input.channels),
          absl::StrCat("--num_classes=", trained.input.classes)};
}

absl::StatusOr<Network> DescribeTrained(const TrainedNetwork& trained) {
  absl::StatusOr<Network> network = CreateNetwork(trained.spec, trained.input);
  if (!network.ok()) {
    return FlagError("network", trained.spec, network.status().message());
  }
  if (network->Count<BatchNormOp>() == 0) {
    return FlagError(
        "network", trained.spec,
        absl::StrCat("has no batch norm; networks with batch norm: ",
                     BatchNormNetworkNames()));
  }
  return network;
}

std::string BatchNormNetworkNames() {
  std::vector<std::string> names = absl::StrSplit(NetworkNames(), ", ");
  std::erase_if(names, [](const std::string& name) {
    return !HasBatchNorm(name).value_or(false);
  });
  return absl::StrJoin(names, ", ");
}

std::string ImageName(const NetworkInput& input) {
  return absl::StrCat(input.height, "x", input.width);
}

std::vector<ActivationShape> BatchNormShapes(const Network& network,
                                             Layout layout) {
  std::vector<ActivationShape> shapes;
  for (const Network::Operation& operation : network.operations()) {
    if (!std::holds_alternative<BatchNormOp>(operation.kind)) continue;
    shapes.push_back({.n = 1,
                      .c = operation.output.c,
                      .hw = operation.output.h * operation.output.w,
                      .layout = layout});
  }
  return shapes;
}

int64_t TrainingBytes(const Network& network, int64_t batch) {
  double outputs = 0, largest = 0;
  for (const Network::Operation& operation : network.operations()) {
    const auto output = static_cast<double>(operation.output.size());
    outputs += output;
    largest = std::max(largest, output);
  }
  const double floats = 4 * static_cast<double>(ParameterCount(network)) +
                        static_cast<double>(batch) * (outputs + 2 * largest);
  return Bytes(kReplicas *
               (static_cast<double>(kPlanBytes) + sizeof(float) * floats));
}

int64_t BatchNormBytes(const Network& network, int64_t batch, DataType type) {
  double elements = 0;
  for (const ActivationShape& shape : BatchNormShapes(network, Layout::kNhwc)) {
    elements += static_cast<double>(shape.size());
  }
  return Bytes(kTensorsOfBatchNorm * static_cast<double>(batch) * elements *
               static_cast<double>(SizeOf(type)));
}

}  // namespace lockstep::benchmarks
