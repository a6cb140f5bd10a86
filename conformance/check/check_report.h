// Runs a case with a trainer and judges it; what a run of the checker found,
// and which of it the trainer's documentation states.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/run/run_trainer.h"
#include "report/document.h"

namespace lockstep::conformance {

struct CaseReport {
  std::string name;
  std::string about;                   // One sentence.
  std::string software = {};           // As a rank names it; "" if none did.
  std::vector<Verdict> verdicts = {};  // Of the judged claims, in order.
  double seconds = 0;                  // That its starts took.
};

struct CheckReport {
  report::Origin origin;
  std::string software;  // As the trainer names itself; "" if it never did.
  int world_size = 2;
  std::vector<CaseReport> cases;
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

// The totals; a table with a row for each case; then what is wrong and how to
// mend it, said once for all cases where it is the same; what was skipped and
// why. Its data: {"software", "world_size", "totals", "cases": [{"name",
// "about", "seconds", "verdicts": [{"claim", "outcome", "error_over_allowed"
// (null where nothing was measured), "cell", "cause", "what", "why", "fix",
// "cited", "last_lines", "by_hand" (null if the case is not kept)}]}]}.
report::Document CheckDocument(const CheckReport& report);

// A difference that a trainer's documentation states, so that it is no news.
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

// Turns a failure into kDocumented if it has the documented cause; every other
// failure stays one.
void ApplyDocumented(const std::vector<Documented>& documented,
                     std::vector<Verdict>& verdicts);

// Starts the trainer on the case with one rank, with all ranks, and with one
// rank again for its rounding and, where a claim fails, for the cause; each in
// a folder of its own below `work_folder`, which must not exist and, unless
// trainer.keep, is gone afterwards. `on_start` is
// told what runs next ("2 ranks"). A trainer that fails with one rank, or does
// not write what it should, is not started again. Only for single-threaded
// processes.
//
// What the trainer does is never an error, but a verdict. Errors: PlayRun's.
absl::StatusOr<CaseReport> RunCheck(
    const CheckCase& check, const TrainerCommand& trainer,
    const std::string& work_folder,
    const std::function<void(const std::string&)>& on_start);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CHECK_REPORT_H_
