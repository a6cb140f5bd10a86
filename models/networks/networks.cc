#include "models/networks/networks.h"

#include <algorithm>
#include <cstdint>
#include <map>
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
#include "base/status_macros.h"
#include "models/networks/network.h"

namespace lockstep {
namespace {

using Describe = Network (*)(const NetworkInput&, NetworkOptions&);

constexpr int64_t kMaxWidth = 1 << 16;

Network DescribeD2lResNet18(const NetworkInput& input,
                            NetworkOptions& options) {
  return D2lResNet18(input, options.Integer("width", 64, 1, kMaxWidth));
}

template <int kDepth>
Network DescribeResNet(const NetworkInput& input, NetworkOptions& options) {
  ResNetOptions resnet = {.name = absl::StrCat("resnet", kDepth)};
  if (kDepth > 18) resnet.blocks = {3, 4, 6, 3};
  resnet.bottleneck = kDepth == 50;
  resnet.width = options.Integer("width", 64, 1, kMaxWidth);
  return ResNet(input, resnet);
}

// Every size may be given; `defaults` are those of the name.
Network DescribeTransformer(const NetworkInput& input, NetworkOptions& options,
                            VisionTransformerOptions defaults) {
  VisionTransformerOptions vit = std::move(defaults);
  vit.patch = options.Integer("patch", vit.patch, 1, 1024);
  vit.width = options.Integer("width", vit.width, 1, kMaxWidth);
  vit.depth = options.Integer("depth", vit.depth, 1, 1000);
  vit.heads = options.Integer("heads", vit.heads, 1, kMaxWidth);
  vit.dropout = options.Rate("dropout", 0);
  vit.attention_dropout = options.Rate("attention_dropout", 0);
  vit.drop_path = options.Rate("drop_path", 0);
  return VisionTransformer(input, vit);
}

template <int kWidth>
Network DescribePatch16(const NetworkInput& input, NetworkOptions& options) {
  const char* const size = kWidth == 192   ? "tiny"
                           : kWidth == 384 ? "small"
                                           : "base";
  return DescribeTransformer(
      input, options,
      {.name = absl::StrCat("vit_", size, "_patch16_224"),
       .width = kWidth,
       .heads = kWidth / 64});
}

constexpr char kVitOptions[] =
    "patch, width, depth, heads, dropout, attention_dropout, drop_path";

struct Entry {
  const char* name;
  const char* options;
  const char* what;
  Describe describe;
};

const Entry kNetworks[] = {
    {"lenet", "", "LeNet of the d2l chapter",
     [](const NetworkInput& input, NetworkOptions&) {
       return LeNet(input, /*batch_norm=*/false);
     }},
    {"lenet_bn", "", "the same with batch norm",
     [](const NetworkInput& input, NetworkOptions&) {
       return LeNet(input, /*batch_norm=*/true);
     }},
    {"resnet18_d2l", "width=64",
     "ResNet-18 of the d2l chapter, for small images", DescribeD2lResNet18},
    {"resnet18", "width=64", "ResNet-18 as torchvision has it",
     DescribeResNet<18>},
    {"resnet34", "width=64", "ResNet-34 as torchvision has it",
     DescribeResNet<34>},
    {"resnet50", "width=64", "ResNet-50 as torchvision has it (v1.5)",
     DescribeResNet<50>},
    {"vit", kVitOptions, "a small vision transformer: 7, 64, 4, 4",
     [](const NetworkInput& input, NetworkOptions& options) {
       return DescribeTransformer(
           input, options,
           {.name = "vit", .patch = 7, .width = 64, .depth = 4, .heads = 4});
     }},
    {"vit_tiny_patch16_224", kVitOptions, "timm's ViT-Ti/16: 16, 192, 12, 3",
     DescribePatch16<192>},
    {"vit_small_patch16_224", kVitOptions, "timm's ViT-S/16: 16, 384, 12, 6",
     DescribePatch16<384>},
    {"vit_base_patch16_224", kVitOptions, "timm's ViT-B/16: 16, 768, 12, 12",
     DescribePatch16<768>},
};

// The network, whose status says whether the images fit it.
absl::StatusOr<Network> DescribeNetwork(absl::string_view spec,
                                        const NetworkInput& input) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(spec, absl::MaxSplits(':', 1));
  for (const Entry& entry : kNetworks) {
    if (parts.first != entry.name) continue;
    if (input.classes < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec, ": ", input.classes, " classes"));
    }
    const auto named = [&](const absl::Status& status) {
      return absl::Status(status.code(),
                          absl::StrCat(entry.name, ": ", status.message()));
    };
    absl::StatusOr<NetworkOptions> options =
        NetworkOptions::Parse(parts.second);
    if (!options.ok()) return named(options.status());
    Network network = entry.describe(input, *options);
    const absl::Status finished = options->Finish();
    if (!finished.ok()) return named(finished);
    return network;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no such model; there are ", NetworkNames()));
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
        "no option '", key, "'; there ",
        known_.empty() ? "are none"
                       : absl::StrCat("are ", absl::StrJoin(known_, ", ")))));
  }
  return status_;
}

std::string NetworkNames() {
  return absl::StrJoin(kNetworks, ", ",
                       [](std::string* out, const Entry& entry) {
                         absl::StrAppend(out, entry.name);
                       });
}

std::string NetworksHelp() {
  std::string help;
  for (const Entry& entry : kNetworks) {
    absl::StrAppendFormat(&help, "  %-21s %s\n", entry.name, entry.what);
    if (entry.options[0] != '\0' && entry.options != kVitOptions) {
      absl::StrAppendFormat(&help, "  %-21s options: %s\n", "", entry.options);
    }
  }
  absl::StrAppendFormat(&help,
                        "Options of the vision transformers, whose defaults "
                        "are those four and 0:\n  %s\n",
                        kVitOptions);
  return help;
}

absl::StatusOr<bool> HasBatchNorm(absl::string_view spec) {
  // Whatever does not fit such images has been described as far as it matters.
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
