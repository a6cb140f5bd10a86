// The report of a checker run, and the list of differences that the trainer's
// documentation states.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "report/document.h"

namespace lockstep::conformance {

struct CaseReport {
  std::string name;
  std::string about;                   // One sentence.
  std::string software = {};           // As a rank names it; "" if none did.
  std::vector<Verdict> verdicts = {};  // One per judged claim, in order.
  double seconds = 0;  // The time that all starts of the case took.
};

struct CheckReport {
  report::Origin origin;
  std::string software;  // As the trainer names itself; "" if it never did.
  int world_size = 2;
  std::vector<CaseReport> cases;
};

// The number of cases by outcome. A case has the outcome of its worst claim.
struct CheckTotals {
  int passed = 0;
  int failed = 0;
  int documented = 0;
  int skipped = 0;
};
CheckTotals TotalsOf(const CheckReport& report);

// Returns the text of a claim's cell in the table: "ok" or the largest error
// over its allowed error, "FAIL", "docs" (fails as documented), "skip", or "-"
// if the case does not ask for the claim.
std::string CellOf(const CaseReport& c, Claim claim);

// Returns the report: the totals, a table with a row for each case, the
// failures and the skipped claims. A failure says what is wrong and how to fix
// it; equal failures of several cases appear once.
//
// The document's data: {"software", "world_size", "totals", "cases": [{"name",
// "about", "seconds", "verdicts": [{"claim", "outcome", "error_over_allowed"
// (null if nothing was measured), "cell", "cause", "what", "why", "fix",
// "cited", "last_lines", "by_hand" (null if the case is not kept)}]}]}.
report::Document CheckDocument(const CheckReport& report);

// A known difference, stated in the trainer's documentation.
struct Documented {
  std::string case_name;
  Claim claim = Claim::kRun;
  Cause cause = Cause::kNone;
  std::string cited;  // The place in the documentation, and its statement.
};

// Parses a JSON array of {"case", "claim", "cause", "cited"}, with the names
// that the checker prints. Errors: kDataLoss, with the path and the key.
absl::StatusOr<std::vector<Documented>> ParseDocumented(
    const std::string& text, const std::string& path);

// Turns each failure that has a documented cause into kDocumented. Every other
// failure stays kFailed.
void ApplyDocumented(const std::vector<Documented>& documented,
                     std::vector<Verdict>& verdicts);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
