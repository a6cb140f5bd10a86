#include "models/networks/networks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/group_digits.h"
#include "base/status_macros.h"
#include "models/networks/lenet.h"
#include "models/networks/mlp.h"
#include "models/networks/network.h"
#include "models/networks/resnet.h"
#include "models/networks/vit.h"

namespace lockstep {
namespace {

std::string NameOf(absl::string_view spec) {
  return std::string(spec.substr(0, spec.find(':')));
}

// Returns the network; its status says whether the images fit.
absl::StatusOr<Network> DescribeNetwork(absl::string_view spec,
                                        const NetworkInput& input) {
  LOCKSTEP_ASSIGN_OR_RETURN(const NetworkEntry entry, FindNetworkEntry(spec));
  if (input.classes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec, ": ", input.classes, " classes"));
  }
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(entry.name, ": ", status.message()));
  };
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(spec, absl::MaxSplits(':', 1));
  absl::StatusOr<NetworkOptions> options = NetworkOptions::Parse(parts.second);
  if (!options.ok()) return named(options.status());
  Network network = entry.describe(input, *options);
  const absl::Status finished = options->Finish();
  if (!finished.ok()) return named(finished);
  return network;
}

int64_t SizeOf(const std::vector<TensorDescription>& tensors) {
  int64_t size = 0;
  for (const TensorDescription& tensor : tensors) size += tensor.size();
  return size;
}

}  // namespace

absl::StatusOr<NetworkOptions> NetworkOptions::Parse(absl::string_view text) {
  NetworkOptions options;
  if (text.empty()) return options;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.size() != 2 || pair[0].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not key=value"));
    }
    if (!options.values_.emplace(pair[0], pair[1]).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("option '", pair[0], "' is given twice"));
    }
  }
  return options;
}

int64_t NetworkOptions::Integer(const std::string& key, int64_t fallback,
                                int64_t min, int64_t max) {
  known_.push_back(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  int64_t value = 0;
  if (absl::SimpleAtoi(found->second, &value) && value >= min && value <= max) {
    return value;
  }
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("option ", key, "=", found->second,
                   ": must be an integer in [", min, ", ", max, "]")));
  return fallback;
}

double NetworkOptions::Rate(const std::string& key, double fallback) {
  known_.push_back(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  double value = 0;
  if (absl::SimpleAtod(found->second, &value) && value >= 0 && value < 1) {
    return value;
  }
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("option ", key, "=", found->second, ": must be in [0, 1)")));
  return fallback;
}

absl::Status NetworkOptions::Finish() {
  for (const auto& [key, value] : values_) {
    if (std::ranges::count(known_, key) > 0) continue;
    status_.Update(absl::InvalidArgumentError(absl::StrCat(
        "'", key, "' is not an option; ",
        known_.empty()
            ? "it has none"
            : absl::StrCat("the options are ", absl::StrJoin(known_, ", ")))));
  }
  return status_;
}

const std::vector<NetworkEntry>& ListedNetworks() {
  static const auto& all = *[] {
    auto* const networks = new std::vector<NetworkEntry>();
    const auto add = [&](std::vector<NetworkEntry> family) {
      std::ranges::move(family, std::back_inserter(*networks));
    };
    // A new family needs a file of its own, and a line here.
    add(LeNets());
    add(D2lResNets());
    add(ResNets());
    add(VisionTransformers());
    add(Perceptrons());
    return networks;
  }();
  return all;
}

std::string NetworkNames() {
  return absl::StrJoin(ListedNetworks(), ", ",
                       [](std::string* out, const NetworkEntry& entry) {
                         absl::StrAppend(out, entry.name);
                       });
}

std::string NetworksHelp() {
  std::string help;
  for (const NetworkEntry& entry : ListedNetworks()) {
    absl::StrAppendFormat(&help, "  %-21s %s\n", entry.name, entry.what);
    if (!entry.options.empty()) {
      absl::StrAppendFormat(&help, "  %-21s options: %s\n", "", entry.options);
    }
  }
  return help;
}

std::string NetworksTable() {
  std::string table =
      "| network | is | tensors are named as by | images | classes | "
      "parameters | in buffers | GFLOP |\n"
      "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |\n";
  for (const NetworkEntry& entry : ListedNetworks()) {
    NetworkOptions options;
    const NetworkInput& input = entry.input;
    const Network network = entry.describe(input, options);
    absl::StrAppendFormat(
        &table, "| `%s` | %s | %s | %dx%dx%d | %d | %s | %s | %.3g |\n",
        entry.name, entry.what, entry.source, input.channels, input.height,
        input.width, input.classes, GroupDigits(SizeOf(network.parameters())),
        GroupDigits(SizeOf(network.buffers())),
        static_cast<double>(FlopsOf(network)) / 1e9);
  }
  return table;
}

absl::StatusOr<NetworkEntry> FindNetworkEntry(absl::string_view spec) {
  const auto& networks = ListedNetworks();
  const auto found =
      std::ranges::find(networks, NameOf(spec), &NetworkEntry::name);
  if (found != networks.end()) return *found;
  return absl::InvalidArgumentError(
      absl::StrCat("no such model; the models are ", NetworkNames()));
}

absl::StatusOr<bool> HasBatchNorm(absl::string_view spec) {
  // The network's status is ignored. If the images do not fit, the layers
  // before the failing layer still show whether the network has batch norm.
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Network network,
      DescribeNetwork(spec, {.channels = 3, .height = 224, .width = 224}));
  return network.Count<BatchNormOp>() > 0;
}

absl::StatusOr<Network> CreateNetwork(absl::string_view spec,
                                      const NetworkInput& input) {
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, DescribeNetwork(spec, input));
  LOCKSTEP_RETURN_IF_ERROR(network.status());
  return network;
}

}  // namespace lockstep
