// Models by their names.
#ifndef LOCKSTEP_MODELS_CREATE_MODEL_H_
#define LOCKSTEP_MODELS_CREATE_MODEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model.h"

namespace lockstep {

// The model of that name with its initial weights from `seed`: "lenet",
// "lenet_bn", "resnet18", all on images [n, 1, 28, 28] of 10 classes. Errors:
// kInvalidArgument for another name, with the list of names.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view name,
                                                   uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CREATE_MODEL_H_
