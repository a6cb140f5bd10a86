#include "syncbn/batch_norm.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

std::optional<BatchNormSemantics> ParseBatchNormSemantics(
    absl::string_view name) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    if (semantics.name == name) return semantics;
  }
  return std::nullopt;
}

absl::Status CheckBatchNormOptions(const BatchNormOptions& options) {
  if (options.channels < 1 ||
      options.channels > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch norm: channels is ", options.channels,
                     ", must be in [1, 2^31 - 1]"));
  }
  if (!(options.epsilon >= 0) || !std::isfinite(options.epsilon)) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch norm: epsilon is ", options.epsilon,
                     ", must be finite and not negative"));
  }
  const BatchNormSemantics& semantics = options.semantics;
  if (semantics.unbiased_running_variance && !semantics.refuses_one_value) {
    return absl::InvalidArgumentError(
        "batch norm: the unbiased variance of one value, which the semantics "
        "accept, is not a number");
  }
  const double momentum = options.momentum.value_or(0);
  if (!(momentum >= 0 && momentum <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch norm: momentum is ", momentum, ", must be in [0, 1]"));
  }
  return absl::OkStatus();
}

double WeightOfBatch(const BatchNormOptions& options, int64_t batches) {
  if (!options.momentum.has_value()) return 1.0 / static_cast<double>(batches);
  const bool of_batch =
      options.semantics.momentum_of == BatchNormSemantics::MomentumOf::kBatch;
  return of_batch ? *options.momentum : 1 - *options.momentum;
}

}  // namespace lockstep
