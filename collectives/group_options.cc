#include "collectives/group_options.h"

#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

const char* Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kDirect:
      return "direct";
  }
  return "unknown algorithm";
}

std::optional<Algorithm> ParseAlgorithm(absl::string_view name) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == Name(algorithm)) return algorithm;
  }
  return std::nullopt;
}

}  // namespace lockstep
