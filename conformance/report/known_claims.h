// The claims that the conformance tests hold the product to.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_KNOWN_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_KNOWN_CLAIMS_H_

#include <vector>

namespace lockstep {

struct KnownClaim {
  const char* name;
  const char* says;     // A sentence.
  const char* allowed;  // What error is allowed, and where it comes from.
  const char* test;     // The label of a test that asks it.
  // No error is allowed: its tests ask for the same bits, and measure none.
  bool exact;
};

// In the order of the report. A ClaimRecorder takes no other name.
const std::vector<KnownClaim>& KnownClaims();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_KNOWN_CLAIMS_H_
