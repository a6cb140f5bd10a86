// The list of models.
#include "models/create_model.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/lenet.h"
#include "models/model_info.h"
#include "models/resnet18.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view name,
                                                   uint64_t seed) {
  if (name == "lenet") return CreateLeNet(seed);
  if (name == "lenet_bn") return CreateLeNetWithBatchNorm(seed);
  if (name == "resnet18") return CreateResNet18(seed);
  return absl::InvalidArgumentError(
      absl::StrCat("no such model; there are ", ModelNames()));
}

}  // namespace lockstep
