// What a run of the checker found, and its forms: a table, Markdown, JSON, a
// page.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/verdict.h"
#include "nlohmann/json.hpp"
#include "report/machine.h"

namespace lockstep {

struct CaseReport {
  std::string name;
  std::string about;              // One sentence.
  std::vector<Verdict> verdicts;  // Of the claims that were asked, in order.
  double seconds = 0;             // That its starts took.
};

struct CheckReport {
  std::string command;   // The trainer's, as it was started.
  std::string software;  // As the trainer names itself; "" if it never did.
  int world_size = 2;
  std::vector<CaseReport> cases;
  Machine machine;
  std::string created;  // As TimeStamp().
  std::string commit;   // Of this suite; "" if unknown.
};

// How many cases hold, fail, and so on: a case is what its worst claim is.
struct CheckTotals {
  int passed = 0;
  int failed = 0;
  int documented = 0;
  int skipped = 0;
};
CheckTotals TotalsOf(const CheckReport& report);

// What stands in the cell of a claim: "ok" or the largest error over its
// allowed error, "FAIL", "docs" (fails as documented), "skip", or "-" where the
// case does not ask.
std::string CellOf(const CaseReport& c, Claim claim);

// Lines of at most kTableColumns: the table, what is wrong and how to mend it,
// what was skipped and why, the totals.
std::string FormatCheckTable(const CheckReport& report);

// The same for a pull request.
std::string FormatCheckMarkdown(const CheckReport& report);

// {"command", "software", "world_size", "created", "cases": [{"name", "about",
// "seconds", "verdicts": [{"claim", "outcome", "error_over_allowed", "cell",
// "cause", "what", "why", "fix", "cited"}]}], ...}. A page shows the cell, and
// rounds nothing anew.
nlohmann::ordered_json CheckJson(const CheckReport& report);

// One page that needs no other file.
std::string FormatCheckPage(const CheckReport& report);

// Differences that a trainer's documentation states, so that they are no news.

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

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
