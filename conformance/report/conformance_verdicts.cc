// What cells, claims and the report are, all tests taken together.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "conformance/report/conformance_report.h"

namespace lockstep {

Verdict VerdictOf(const ClaimCell& cell) {
  if (cell.failed > 0) return Verdict::kFailed;
  const bool whole = cell.skipped == 0 && cell.not_run == 0;
  if (cell.passed > 0) return whole ? Verdict::kHolds : Verdict::kInPart;
  return cell.skipped > 0 ? Verdict::kSkipped : Verdict::kNotRun;
}

Verdict VerdictOf(const ClaimReport& claim) {
  bool failed = !claim.failed_tests.empty(), any = false, whole = true;
  for (const ClaimRow& row : claim.rows) {
    for (const auto& [world_size, cell] : row.cells) {
      const Verdict verdict = VerdictOf(cell);
      failed = failed || verdict == Verdict::kFailed;
      any = any || verdict == Verdict::kHolds || verdict == Verdict::kInPart;
      whole = whole && verdict == Verdict::kHolds;
    }
  }
  for (const GpuRow& row : claim.gpu_rows) {
    failed = failed || row.verdict == Verdict::kFailed;
    whole = whole && row.verdict != Verdict::kNotRun;
  }
  if (failed) return Verdict::kFailed;
  if (!any) return Verdict::kNotRun;
  return whole ? Verdict::kHolds : Verdict::kInPart;
}

ReportTotals TotalsOf(const ConformanceReport& report) {
  ReportTotals totals;
  for (const ClaimReport& claim : report.claims) {
    const Verdict verdict = VerdictOf(claim);
    totals.claims_hold += verdict == Verdict::kHolds;
    totals.claims_in_part += verdict == Verdict::kInPart;
    totals.claims_not_run += verdict == Verdict::kNotRun;
    totals.claims_failed += verdict == Verdict::kFailed;
  }
  for (const TargetSummary& target : report.targets) {
    totals.tests_passed += target.passed;
    totals.tests_failed += target.failed;
    totals.tests_skipped += target.skipped;
    totals.targets_older += target.older;
    for (const std::string& configuration : target.configurations) {
      ++totals.configurations[configuration];
    }
  }
  return totals;
}

void MarkOlder(absl::Time committed, ConformanceReport& report) {
  report.committed =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", committed, absl::UTCTimeZone());
  for (TargetSummary& target : report.targets) {
    absl::Time started;
    std::string error;
    // GoogleTest writes local time, which Bazel sets to UTC for its tests.
    target.older = absl::ParseTime("%Y-%m-%dT%H:%M:%E*S", target.started,
                                   absl::UTCTimeZone(), &started, &error) &&
                   started < committed;
  }
}

std::string CellText(const ClaimCell& cell) {
  const Verdict verdict = VerdictOf(cell);
  switch (verdict) {
    case Verdict::kSkipped:
      return "skip";
    case Verdict::kNotRun:
      return "not run";
    case Verdict::kFailed:
      return cell.error_over_allowed > 1 &&
                     std::isfinite(cell.error_over_allowed)
                 ? absl::StrFormat("FAIL %.3g", cell.error_over_allowed)
                 : "FAIL";
    case Verdict::kInPart:
    case Verdict::kHolds:
      break;
  }
  return absl::StrCat(
      cell.exact ? "exact" : absl::StrFormat("%.2g", cell.error_over_allowed),
      verdict == Verdict::kInPart ? " in part" : "");
}

}  // namespace lockstep
