#include "conformance/check/judge/updates.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {

Tensors UpdateOf(const Evidence& evidence, const RankOutput& output,
                 const std::string& kind, int64_t step) {
  return Minus(
      TensorsOf(output, kind, step),
      step == 1 ? StartOf(evidence.check) : TensorsOf(output, kind, step - 1));
}

bool IsFirstAfterResume(const Evidence& evidence, int64_t step) {
  const CasePlan& plan = evidence.check.all_ranks;
  return plan.resumed.has_value() && step == plan.c.stop_after + 1;
}

bool HasLostMomentum(const Evidence& evidence,
                     const std::vector<std::string>& names,
                     const RankOutput& right, const RankOutput& got,
                     int64_t step, const AllowedErrors& allowed) {
  const double momentum = evidence.c.momentum;
  if (step < 2 || momentum == 0) return false;
  const Tensors before = UpdateOf(evidence, right, "parameter", step - 1);
  const Tensors update = UpdateOf(evidence, right, "parameter", step);
  return Fits(names, PlusTimes(update, -momentum, before),
              UpdateOf(evidence, got, "parameter", step), allowed, 4);
}

std::optional<double> DecayFactor(const Evidence& evidence,
                                  const std::vector<std::string>& names,
                                  const Tensors& want, const Tensors& got,
                                  double factor, const Tensors& weights,
                                  const AllowedErrors& allowed) {
  if (evidence.c.weight_decay == 0) return std::nullopt;
  const Tensors decay = Times(factor * evidence.c.weight_decay, weights);
  const double k = FittedFactor(names, decay, Minus(got, want));
  if (!Fits(names, PlusTimes(want, k, decay), got, allowed) ||
      Fits(names, want, got, allowed)) {
    return std::nullopt;
  }
  return 1 + k;
}

}  // namespace lockstep::conformance
