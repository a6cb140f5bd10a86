// What the checks of a run begin with.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_STEPS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_STEPS_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "conformance/checks.h"
#include "conformance/trace.h"

namespace lockstep {

// "epoch 1 step 0".
std::string StepName(const Expectation& want, size_t s);

// Every trace has the expected steps, and every array the expected size. Error:
// kDataLoss.
absl::Status CheckShapes(const Expectation& want,
                         std::span<const RankTrace> ranks);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_STEPS_H_
