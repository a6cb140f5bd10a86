// Differences that a trainer's documentation states, so that they are no news.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_DOCUMENTED_H_
#define LOCKSTEP_CONFORMANCE_CHECK_DOCUMENTED_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/verdict.h"

namespace lockstep {

struct Documented {
  std::string case_name;
  Claim claim = Claim::kRun;
  Cause cause = Cause::kNone;
  std::string cited;  // Where it is documented, and what is said there.
};

// A JSON array of {"case", "claim", "cause", "cited"}, with the names that the
// checker prints. Errors: kDataLoss, with the path and the key.
absl::StatusOr<std::vector<Documented>> ParseDocumented(
    const std::string& text, const std::string& path);

// Makes what failed for the documented cause kDocumented; what fails otherwise
// stays a failure.
void ApplyDocumented(const std::vector<Documented>& documented,
                     std::vector<Verdict>& verdicts);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_DOCUMENTED_H_
