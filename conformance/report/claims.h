// The claims that the conformance tests hold the product to, the cells that
// they record, and a claim's result as a test's JUnit XML carries it.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::conformance {

// What one test records of a claim on a backend: a cell of each type at each
// world size. Several rows of a claim may have the same backend, and even the
// same cells: each test has to record its own.
struct ExpectedRow {
  std::string backend;
  std::string test;  // Its label.
  std::vector<std::string> types = {};
  std::vector<int> world_sizes = {};
  // What a test asks that needs a GPU and so runs with --config=cuda alone. It
  // has neither types nor world sizes, and passes or fails as a whole: which
  // cells of the claim it records, if any, its machine's GPUs decide. "" for
  // any other test.
  std::string gpu_asks = {};
};

// What a claim allows that asks for the same bits: its tests measure no error.
inline constexpr char kNoError[] = "none: the same bits";

struct KnownClaim {
  std::string name;
  std::string says;     // A sentence.
  std::string allowed;  // What error is allowed, and where it comes from.
  // All cells of a whole run, so that the report sees which are missing. The
  // first row's test is the one to read.
  std::vector<ExpectedRow> rows;

  bool exact() const { return allowed == kNoError; }
};

// In the order of the report. A ClaimRecorder takes no other name.
const std::vector<KnownClaim>& KnownClaims();

// What a test measured of a claim: one cell of the report, or a part of one.
struct ClaimResult {
  std::string claim = {};  // One of KnownClaims().
  std::string backend = {};
  int world_size = 1;
  std::string type = {};
  int64_t cases = 0;  // How many were measured.
  // The largest error over its allowed error; an infinity for NaN. 0 where no
  // error is allowed and there was none.
  double error_over_allowed = 0;
  bool exact = false;  // No error is allowed.

  friend bool operator==(const ClaimResult&, const ClaimResult&) = default;
};

// How the name of a property that holds a ClaimResult begins.
inline constexpr char kClaimProperty[] = "lockstep_claim_";

// The property that says how a test that recorded claims was built and run:
// words with ", " between them.
inline constexpr char kConfigurationProperty[] = "lockstep_configuration";
// One of the words: --test_filter left some of the tests out.
inline constexpr char kFiltered[] = "filtered";

// The value of such a property, in JSON.
std::string FormatClaimResult(const ClaimResult& result);

// What FormatClaimResult wrote. Error: kInvalidArgument, one line that says
// what is wrong.
absl::StatusOr<ClaimResult> ParseClaimResult(absl::string_view text);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CLAIMS_H_
