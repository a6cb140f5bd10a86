// What a run of the conformance tests showed, and its forms: Markdown, JSON, a
// page.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "conformance/report/expected_rows.h"
#include "conformance/report/known_claims.h"
#include "conformance/report/test_logs.h"
#include "conformance/report/test_xml.h"
#include "nlohmann/json.hpp"
#include "report/machine.h"

namespace lockstep {

// A claim at one world size: all that the tests measured of it there. It is
// what the worst of its tests is.
struct ClaimCell {
  TestOutcome outcome = TestOutcome::kSkipped;
  double error_over_allowed = 0;  // The largest; may be an infinity.
  bool exact = true;              // No error is allowed.
  int64_t cases = 0;
};

// Cells by world size. Types that say the same share a row; its cases are those
// of all.
struct ClaimRow {
  std::string backend;
  std::vector<std::string> types;
  std::map<int, ClaimCell> cells;
};

struct ClaimReport {
  std::string name;
  std::string says;
  std::string allowed;
  std::string test;                  // The label of a test that asks it.
  std::vector<ClaimRow> rows;        // None: nothing was run that asks it.
  std::vector<ExpectedRow> missing;  // Of which no test left a result.
  // Tests that ask it in which something failed that recorded no claim: a
  // control, or they ended before they could.
  std::vector<std::string> failed_tests;
};

// A test that failed, or a target with a problem.
struct Failure {
  std::string target;
  std::string test;  // "Suite.Name"; "" for the whole target.
  std::string what;
};

// Tests that were skipped, and why.
struct Skip {
  std::string target;
  std::string why;
  int64_t tests = 0;
};

struct TargetSummary {
  std::string label;
  int64_t passed = 0;
  int64_t failed = 0;  // Problems included.
  int64_t skipped = 0;
  double seconds = 0;   // Of its cases, added up.
  std::string started;  // "" if no file says.
};

struct ConformanceReport {
  std::vector<ClaimReport> claims;  // The known ones, then any others.
  std::vector<int> world_sizes;     // Of all cells, ascending.
  std::vector<Failure> failures;
  std::vector<Skip> skips;
  std::vector<TargetSummary> targets;
  std::string first_started;  // When the tests ran; "" if no file says.
  std::string last_started;

  std::string testlogs;  // The folder.
  std::string command;
  std::string created;  // As TimeStamp().
  std::string commit;   // "" if unknown.
  Machine machine;      // That wrote the report.
  std::vector<std::pair<std::string, std::string>> versions;
};

struct ReportTotals {
  int64_t claims_hold = 0;
  int64_t claims_failed = 0;
  int64_t claims_not_run = 0;  // Or only skipped.
  int64_t tests_passed = 0;
  int64_t tests_failed = 0;  // With the problems of whole targets.
  int64_t tests_skipped = 0;
};
ReportTotals TotalsOf(const ConformanceReport& report);

// What a claim is at all world sizes together: kFailed also if one of its tests
// failed where it recorded nothing; kSkipped if nothing was run.
TestOutcome OutcomeOf(const ClaimReport& claim);

// The part of the report that the tests say. A claim fails where a test that
// recorded it failed, and where it measured more than is allowed, or nothing.
ConformanceReport MakeReport(std::span<const TestTarget> targets,
                             const std::vector<KnownClaim>& known,
                             const std::vector<ExpectedRow>& expected);

// "exact", or the error over the allowed one; "FAIL", with that if it is
// measured and above 1; "skip".
std::string CellText(const ClaimCell& cell);

// What fails comes first; then the table, what was skipped and not run, and
// where it is from. For a terminal, a file or a pull request.
std::string FormatReportMarkdown(const ConformanceReport& report);

// {"command", "created", "commit", "machine", "versions", "testlogs",
// "first_started", "last_started", "totals", "world_sizes", "failures":
// [{"target", "test", "what"}], "claims": [{"name", "says", "allowed", "test",
// "outcome", "failed_tests", "rows": [{"backend", "types", "cells":
// [{"world_size", "outcome", "error_over_allowed", "exact", "cases",
// "text"}]}], "missing": [{"backend", "test", "skipped"}]}], "skipped":
// [{"target", "tests", "why"}], "targets": [{"label", "passed", "failed",
// "skipped", "seconds", "started"}]}; error_over_allowed is null for an
// infinity.
nlohmann::ordered_json ReportJson(const ConformanceReport& report);

// One page that needs no other file.
std::string FormatReportPage(const ConformanceReport& report);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
