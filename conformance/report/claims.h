// The claims that the conformance tests check, the cells that they record, and
// the form of a claim's result in a test's JUnit XML.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::conformance {

// The cells that one test records of a claim on a backend: one for each type at
// each world size. Several rows of a claim may have the same backend, and even
// the same cells: each test must record its own.
struct ExpectedRow {
  std::string backend;
  std::string test;  // The test's label.
  std::vector<std::string> types = {};
  std::vector<int> world_sizes = {};
  // For a test that needs a GPU, and therefore runs only with --config=cuda:
  // what the test checks. Its row has neither types nor world sizes, and passes
  // or fails as a whole. The cells that the test records, if any, depend on the
  // machine's GPUs. "" for any other test.
  std::string gpu_asks = {};
};

// The `allowed` of a claim that requires equal bits: its tests measure no
// error.
inline constexpr char kNoError[] = "none: the same bits";

struct KnownClaim {
  std::string name;
  std::string says;     // One sentence.
  std::string allowed;  // The allowed error and its derivation.
  // All cells of a complete run, so that the report can show the missing ones.
  // Readers are referred to the test of the first row.
  std::vector<ExpectedRow> rows;

  bool exact() const { return allowed == kNoError; }
};

// Returns the claims in the order of the report. A ClaimRecorder accepts no
// other name.
const std::vector<KnownClaim>& KnownClaims();

// A test's measurement of a claim: one cell of the report, or a part of one.
struct ClaimResult {
  std::string claim = {};  // One of KnownClaims().
  std::string backend = {};
  int world_size = 1;
  std::string type = {};
  int64_t cases = 0;  // The number of measured cases.
  // The largest error over its allowed error; infinity for NaN. 0 if no error
  // is allowed and none was measured.
  double error_over_allowed = 0;
  bool exact = false;  // True if no error is allowed.

  friend bool operator==(const ClaimResult&, const ClaimResult&) = default;
};

// The prefix of the name of a property that holds a ClaimResult.
inline constexpr char kClaimProperty[] = "lockstep_claim_";

// The property that says how a test that recorded claims was built and run. Its
// value is words separated by ", ".
inline constexpr char kConfigurationProperty[] = "lockstep_configuration";
// One of these words: --test_filter excluded some of the tests.
inline constexpr char kFiltered[] = "filtered";

// Returns the property's value for a result, in JSON.
std::string FormatClaimResult(const ClaimResult& result);

// Parses the text that FormatClaimResult wrote. Error: kInvalidArgument, with
// one line that says what is wrong.
absl::StatusOr<ClaimResult> ParseClaimResult(absl::string_view text);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
