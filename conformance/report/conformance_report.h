// What the conformance tests left when they were run, and what that shows.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "conformance/report/claims.h"
#include "report/document.h"

namespace lockstep::conformance {

// What Bazel keeps of tests: the JUnit XML of each, as GoogleTest writes it or
// Bazel for a test that wrote none, in a folder for each.
enum class TestOutcome { kPassed, kFailed, kSkipped };

struct TestCaseResult {
  std::string name;  // "Suite.Name".
  TestOutcome outcome = TestOutcome::kPassed;
  std::string message = {};  // Of its first failure, or why it was skipped.
  double seconds = 0;
  std::vector<std::pair<std::string, std::string>> properties = {};

  friend bool operator==(const TestCaseResult&,
                         const TestCaseResult&) = default;
};

struct TestXml {
  std::string started;  // As the file has it; "" if it does not.
  std::vector<TestCaseResult> cases;
};

// Reads one XML file. Errors: kInvalidArgument, one line, where the text is no
// XML, has a document type, which no test writes, or is no test's.
absl::StatusOr<TestXml> ParseTestXml(absl::string_view text);

// One test target, of all its shards.
struct TestTarget {
  std::string label;  // "//conformance/syncbn:sync_batch_norm_test".
  std::vector<TestCaseResult> cases = {};
  // What is wrong beside the cases that failed: one line each.
  std::vector<std::string> problems = {};
  // When the first and the last shard began, as their XML has it; "" if none
  // says.
  std::string first_started = {};
  std::string last_started = {};
};

// Reads the targets below `testlogs`/conformance, and those of `labels` that
// left results, sorted by label. If a target has shards of several runs, the
// newest run counts. It is no error but a problem of the target if a shard is
// missing, ran past its time limit, failed although no case did, wrote no
// readable XML, or has no readable status of Bazel's. Errors: kNotFound, one
// line, if there is no such folder or no result in it; kUnavailable if a part
// of it cannot be read.
absl::StatusOr<std::vector<TestTarget>> ReadTestLogs(
    const std::string& testlogs, std::span<const std::string> labels = {});

// The state of a cell, a row or a claim, by all the tests that are expected to
// measure it. kInPart: some passed, and others were skipped or not run.
enum class ClaimState { kHolds, kInPart, kSkipped, kNotRun, kFailed };

// A claim at one world size: all that the tests measured of it there.
struct ClaimCell {
  int64_t passed = 0;  // Tests.
  int64_t failed = 0;
  int64_t skipped = 0;
  // Expected targets that recorded nothing here, and tests of which
  // --test_filter left a part out.
  int64_t not_run = 0;
  double error_over_allowed = 0;  // The largest; may be an infinity.
  bool exact = true;              // No error is allowed.
  int64_t cases = 0;
};

// Cells by world size. Types with the same results share a row, whose counts
// are their sums.
struct ClaimRow {
  std::string backend;
  std::vector<std::string> types;
  std::map<int, ClaimCell> cells;
};

// A row of a test that records no numbers, since it needs a GPU.
struct GpuRow {
  std::string backend;
  std::string test;
  std::string asks;
  ClaimState state = ClaimState::kSkipped;
  std::string why;  // It was skipped.
};

// Cells that a test was expected to record, and did not.
struct MissingCells {
  std::string backend;
  std::string test;
  int64_t cells = 0;
  int64_t expected = 0;  // Of the test, with those that it recorded.
};

struct ClaimReport {
  std::string name;
  std::string says;
  std::string allowed;
  std::string test;            // The label of a test that asks it.
  std::vector<ClaimRow> rows;  // With all expected cells.
  std::vector<GpuRow> gpu_rows;
  std::vector<MissingCells> missing;
  // Its tests in which something failed without recording a claim: a control,
  // or a case that ended before it could.
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
  bool older = false;   // It began before the checked-out commit was made.
  // How it was built and run, of a target that recorded claims.
  std::set<std::string> configurations;
};

struct ConformanceReport {
  std::vector<ClaimReport> claims;  // The known ones, then any others.
  std::vector<int> world_sizes;     // Of all cells, ascending.
  std::vector<Failure> failures;
  std::vector<Skip> skips;
  std::vector<TargetSummary> targets;
  std::string first_started;  // When the tests ran; "" if no file says.
  std::string last_started;

  std::string testlogs;   // The folder.
  std::string committed;  // When the commit was made; "" if unknown.
  report::Origin origin;  // Of the report itself.
  std::vector<std::pair<std::string, std::string>> versions;
};

struct ReportTotals {
  int64_t claims_hold = 0;
  int64_t claims_in_part = 0;
  int64_t claims_not_run = 0;  // Or only skipped.
  int64_t claims_failed = 0;
  int64_t tests_passed = 0;
  int64_t tests_failed = 0;  // With the problems of whole targets.
  int64_t tests_skipped = 0;
  int64_t gpu_rows_skipped = 0;  // Of all claims, for lack of a GPU.
  int64_t targets_older = 0;
  // Targets that recorded claims, by how they were built and run.
  std::map<std::string, int64_t> configurations;
};
ReportTotals TotalsOf(const ConformanceReport& report);

ClaimState StateOf(const ClaimCell& cell);

// The state of a claim at all world sizes together: kFailed also if one of its
// tests failed where it recorded nothing; kNotRun, never kSkipped, if nothing
// was run. Rows that were skipped for lack of a GPU do not count.
ClaimState StateOf(const ClaimReport& claim);

// The part of the report that the tests say. A claim fails where a test that
// recorded it failed, and where it measured more than is allowed, or nothing,
// or an error where none is allowed, or what is not expected. What a target
// "X_exhaustive" recorded counts as X's.
ConformanceReport MakeReport(std::span<const TestTarget> targets,
                             const std::vector<KnownClaim>& known);

// Marks the targets that began before the checked-out commit was made.
void MarkOlder(absl::Time committed, ConformanceReport& report);

// "exact", or the error over the allowed one, with "in part" if that is all;
// "FAIL", with the error if it is measured and above 1; "skip"; "not run".
std::string CellText(const ClaimCell& cell);

// What fails comes first; then the table, what was skipped and not run, what is
// old or mixed, and where it is from. For a file or a pull request. Its data:
// {"committed", "testlogs", "first_started", "last_started", "versions",
// "totals", "world_sizes",
// "claims": [{"name", "says", "allowed", "test", "outcome", "failed_tests",
//   "rows": [{"backend", "types", "cells": [{"world_size", "outcome",
//     "error_over_allowed", "exact", "cases", "text"}]}],
//   "gpu_rows": [{"backend", "test", "asks", "outcome", "why"}],
//   "missing": [{"backend", "test", "cells", "expected"}]}],
// "failures": [{"target", "test", "what"}], "skipped": [{"target", "tests",
// "why"}], "targets": [{"label", "passed", "failed", "skipped", "seconds",
// "started", "older", "configurations"}]}. An outcome is "passed", "in_part",
// "skipped", "not_run" or "failed"; error_over_allowed is null for an infinity.
report::Document ConformanceDocument(const ConformanceReport& report);

// The same and, for a page, what each claim says and what each target did.
report::Document ConformancePage(const ConformanceReport& report);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REPORT_CONFORMANCE_REPORT_H_
