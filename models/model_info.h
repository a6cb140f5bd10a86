// The models by name, and what can be said of each before it is made.
#ifndef LOCKSTEP_MODELS_MODEL_INFO_H_
#define LOCKSTEP_MODELS_MODEL_INFO_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Known to CreateModel by this name.
struct ModelInfo {
  const char* name;
  int64_t channels;  // Of an image, as are height and width.
  int64_t height;
  int64_t width;
  int64_t classes;
  bool has_batch_norm;
};

std::span<const ModelInfo> AllModels();

// Null if there is no such model.
const ModelInfo* FindModel(absl::string_view name);

// "lenet, lenet_bn, resnet18": what else there is, for messages.
std::string ModelNames();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_MODEL_INFO_H_
