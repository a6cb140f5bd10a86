// The changes of parameters and buffers in one step. Internal to the judge.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_UPDATES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_UPDATES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {

// Returns how far the tensors of one kind ("parameter" or "buffer") moved in
// `step` of a run. Empty if the case does not ask for the state before or after
// the step.
Tensors UpdateOf(const Evidence& evidence, const RankOutput& output,
                 const std::string& kind, int64_t step);

// Returns whether `step` is the first step after a resume.
bool IsFirstAfterResume(const Evidence& evidence, int64_t step);

// Returns whether the parameters of `got` moved in `step` as those of `right`
// would if momentum had begun at zero. An update is momentum times the previous
// update, plus the gradient's term. Without momentum, the first part is
// missing.
bool HasLostMomentum(const Evidence& evidence,
                     const std::vector<std::string>& names,
                     const RankOutput& right, const RankOutput& got,
                     int64_t step, const AllowedErrors& allowed);

// Returns the k for which got = want + factor * (k - 1) * weight decay *
// weights, within the allowed errors; none if there is no weight decay, or if
// no k other than 1 fits. `weights` are the parameters that decay.
std::optional<double> DecayFactor(const Evidence& evidence,
                                  const std::vector<std::string>& names,
                                  const Tensors& want, const Tensors& got,
                                  double factor, const Tensors& weights,
                                  const AllowedErrors& allowed);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_UPDATES_H_
