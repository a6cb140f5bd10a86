// What a conformance test says about a claim, as its JUnit XML carries it.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RESULT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RESULT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// A claim where it was asked: one cell of the report, or a part of one.
struct ClaimResult {
  std::string claim = {};  // One of KnownClaims().
  std::string backend = {};
  int world_size = 1;
  std::string type = {};
  int64_t cases = 0;  // That were measured.
  // The largest error over its allowed error; an infinity for NaN. 0 where no
  // error is allowed and there was none.
  double error_over_allowed = 0;
  bool exact = false;  // No error is allowed.
};

// The names of properties that hold a ClaimResult begin so.
inline constexpr char kClaimProperty[] = "lockstep_claim_";

// The property that says how a test that recorded claims was built and run:
// words with ", " between them.
inline constexpr char kConfigurationProperty[] = "lockstep_configuration";
// One of the words: --test_filter left some of the tests out.
inline constexpr char kFiltered[] = "filtered";

// The value of such a property: JSON.
std::string FormatClaimResult(const ClaimResult& result);

// What FormatClaimResult wrote. Error: kInvalidArgument, one line that says
// what is wrong.
absl::StatusOr<ClaimResult> ParseClaimResult(absl::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIM_RESULT_H_
