// One rank's run again, with the samples of every step in another order.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_SHADOWS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_SHADOWS_H_

#include <vector>

#include "conformance/check/check_case.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// A start of one rank on data whose rows stand in another order.
struct Shadow {
  CasePlan plan;
  CaseFiles files;
};

// Two shadows of check.one_rank: within every global batch the samples are
// reversed, and rotated by half; the test set likewise. Each step then has the
// same samples, so only rounding can change. None where no number is compared
// (only kRun and kSamples are claimed) or the order is random.
std::vector<Shadow> ShadowsOf(const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_SHADOWS_H_
