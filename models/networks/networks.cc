#include "models/networks/networks.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

constexpr ModelInfo kModels[] = {
    {.name = "lenet",
     .channels = 1,
     .height = 28,
     .width = 28,
     .classes = 10,
     .has_batch_norm = false},
    {.name = "lenet_bn",
     .channels = 1,
     .height = 28,
     .width = 28,
     .classes = 10,
     .has_batch_norm = true},
    {.name = "resnet18",
     .channels = 1,
     .height = 28,
     .width = 28,
     .classes = 10,
     .has_batch_norm = true},
};

}  // namespace

std::span<const ModelInfo> AllModels() { return kModels; }

const ModelInfo* FindModel(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kModels), std::end(kModels),
                   [name](const ModelInfo& info) { return info.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

std::string ModelNames() {
  std::string names;
  for (const ModelInfo& info : kModels) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", info.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view name,
                                                   uint64_t seed) {
  if (name == "lenet") return CreateLeNet(seed);
  if (name == "lenet_bn") return CreateLeNetWithBatchNorm(seed);
  if (name == "resnet18") return CreateResNet18(seed);
  return absl::InvalidArgumentError(
      absl::StrCat("no such model; there are ", ModelNames()));
}

}  // namespace lockstep
