// The claims that the conformance tests hold the product to.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

// The cells that a whole run of the tests has, so that one of which no test
// left a result is seen to be missing, and one that nobody expects to be wrong.

// What one test records of a claim on a backend: a cell of each type at each
// world size. Several rows may have the same claim and backend, and then even
// the same cells: each test has to record its own.
struct ExpectedRow {
  std::string claim;  // One of KnownClaims().
  std::string backend;
  std::string test;  // The label of the test.
  std::vector<std::string> types;
  std::vector<int> world_sizes;
  // What a test asks that needs a GPU and so runs with --config=cuda alone. It
  // records nothing: it has neither types nor world sizes, and passes or fails
  // as a whole. "" for any other test.
  std::string gpu_asks = {};
};

const std::vector<ExpectedRow>& ExpectedRows();

// What a conformance test says about a claim, as its JUnit XML carries it.

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

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
