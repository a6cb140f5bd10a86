// Finds profiles by name.
#include "syncbn/batch_norm_semantics.h"

#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

std::optional<BatchNormSemantics> ParseBatchNormSemantics(
    absl::string_view name) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    if (semantics.name == name) return semantics;
  }
  return std::nullopt;
}

}  // namespace lockstep
