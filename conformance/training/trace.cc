#include "conformance/training/trace.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/model.h"

namespace lockstep::conformance {

std::string StepName(const Expectation& want, size_t s) {
  return absl::StrCat("epoch ", want.steps[s].epoch, " step ",
                      want.steps[s].step);
}

absl::Status CheckShapes(const Expectation& want,
                         std::span<const RankTrace> ranks) {
  const size_t steps = want.steps.size();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankTrace& trace = ranks[rank];
    if (trace.samples.size() != steps || trace.gradients.size() != steps ||
        trace.parameters.size() != steps + 1) {
      return absl::DataLossError(
          absl::StrCat("rank ", rank, " took ", trace.samples.size(),
                       " steps, one rank takes ", steps));
    }
    for (size_t s = 0; s <= steps; ++s) {
      const size_t size = trace.parameters[s].size();
      if (size != want.start.size() ||
          (s < steps && trace.gradients[s].size() != size)) {
        return absl::DataLossError(absl::StrCat("rank ", rank, " has ", size,
                                                " parameters, must have ",
                                                want.start.size()));
      }
    }
  }
  return absl::OkStatus();
}

std::string ElementName(std::span<const ParameterSpec> specs, int64_t i) {
  for (const ParameterSpec& spec : specs) {
    if (i < spec.offset + spec.size) {
      return absl::StrCat(spec.name, "[", i - spec.offset, "]");
    }
  }
  return absl::StrCat("element ", i);
}

}  // namespace lockstep::conformance
