// Reads the results of the conformance tests from Bazel's folders and
// summarises them in a report on the claims.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "conformance/report/claims.h"
#include "conformance/report/test_logs.h"
#include "report/document.h"

namespace lockstep::conformance {

// The state of a cell, a row or a claim, over all tests that are expected to
// measure it. kInPart: some passed, and others were skipped or not run.
enum class ClaimState { kHolds, kInPart, kSkipped, kNotRun, kFailed };

// A claim at one world size, with all measurements there.
struct ClaimCell {
  int64_t passed = 0;  // The number of tests.
  int64_t failed = 0;
  int64_t skipped = 0;
  // Expected targets that recorded nothing here, and tests that --test_filter
  // ran only in part.
  int64_t not_run = 0;
  double error_over_allowed = 0;  // The largest; may be infinite.
  bool exact = true;              // True if no error is allowed.
  int64_t cases = 0;
};

// Cells by world size. Types with the same results share a row, which adds up
// their counts.
struct ClaimRow {
  std::string backend;
  std::vector<std::string> types;
  std::map<int, ClaimCell> cells;
};

// A row of a test that records no numbers because it needs a GPU.
struct GpuRow {
  std::string backend;
  std::string test;
  std::string asks;
  ClaimState state = ClaimState::kSkipped;
  std::string why;  // The reason for the skip.
};

// Cells that a test was expected to record, but did not record.
struct MissingCells {
  std::string backend;
  std::string test;
  int64_t cells = 0;
  int64_t expected = 0;  // All cells of the test, with the recorded ones.
};

struct ClaimReport {
  std::string name;
  std::string says;
  std::string allowed;
  std::string test;            // The label of a test that checks the claim.
  std::vector<ClaimRow> rows;  // All expected cells.
  std::vector<GpuRow> gpu_rows;
  std::vector<MissingCells> missing;
  // The tests of this claim in which something failed without recording a
  // claim: a control, or a case that ended too early.
  std::vector<std::string> failed_tests;
};

// A test that failed, or a target with a problem.
struct Failure {
  std::string target;
  std::string test;  // "Suite.Name"; "" for the whole target.
  std::string what;
};

// Skipped tests with the same reason.
struct Skip {
  std::string target;
  std::string why;
  int64_t tests = 0;
};

struct TargetSummary {
  std::string label;
  int64_t passed = 0;
  int64_t failed = 0;  // Includes problems.
  int64_t skipped = 0;
  double seconds = 0;   // The sum over its cases.
  std::string started;  // "" if no file has a start time.
  bool older = false;   // It started before the checked-out commit was made.
  // How the target was built and run; empty if it recorded no claims.
  std::set<std::string> configurations;
};

struct ConformanceReport {
  std::vector<ClaimReport> claims;  // The known claims, then any others.
  std::vector<int> world_sizes;     // Of all cells, ascending.
  std::vector<Failure> failures;
  std::vector<Skip> skips;
  std::vector<TargetSummary> targets;
  std::string first_started;  // The tests' start times; "" if no file has one.
  std::string last_started;

  std::string testlogs;   // The folder.
  std::string committed;  // The time of the commit; "" if unknown.
  report::Origin origin;  // The origin of the report itself.
  std::vector<std::pair<std::string, std::string>> versions;
};

struct ReportTotals {
  int64_t claims_hold = 0;
  int64_t claims_in_part = 0;
  int64_t claims_not_run = 0;  // Or only skipped.
  int64_t claims_failed = 0;
  int64_t tests_passed = 0;
  int64_t tests_failed = 0;  // Includes problems of whole targets.
  int64_t tests_skipped = 0;
  int64_t gpu_rows_skipped = 0;  // Over all claims, for lack of a GPU.
  int64_t targets_older = 0;
  // The number of targets that recorded claims, by how they were built and run.
  std::map<std::string, int64_t> configurations;
};
ReportTotals TotalsOf(const ConformanceReport& report);

ClaimState StateOf(const ClaimCell& cell);

// Returns the state of a claim over all world sizes. It is kFailed also if one
// of the claim's tests failed without recording a claim. If nothing ran, it is
// kNotRun, never kSkipped. Rows that were skipped for lack of a GPU do not
// count.
ClaimState StateOf(const ClaimReport& claim);

// Makes the part of the report that comes from the tests. A claim fails if a
// test that recorded it failed. It also fails if a test measured more than the
// allowed error, no case at all, an error although none is allowed, or an
// unexpected cell. Records of a target "X_exhaustive" count as X's.
ConformanceReport MakeReport(std::span<const TestTarget> targets,
                             const std::vector<KnownClaim>& known);

// Marks the targets that started before the checked-out commit was made.
void MarkOlder(absl::Time committed, ConformanceReport& report);

// Returns a cell's text: "exact", or the error over the allowed one, with " in
// part" for kInPart; "FAIL", with the error if it is finite and above 1;
// "skip"; "not run".
std::string CellText(const ClaimCell& cell);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
