// The causes of a wrong y.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_OUTPUT_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_OUTPUT_CAUSES_H_

#include <cstdint>
#include <span>
#include <string>

#include "conformance/syncbn/step_view.h"

namespace lockstep::conformance {

// Explains y of one channel on one rank, as the functions of causes.h do. got:
// [n, c, hw] of the rank. The rank's bytes tell which elements were never
// written.
std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_OUTPUT_CAUSES_H_
