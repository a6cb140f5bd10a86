// The report for a terminal, a file and a pull request.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/foreign_text.h"

namespace lockstep {
namespace {

constexpr bool kInTable = true;

std::string Count(int64_t count, const char* one, const char* more) {
  return absl::StrCat(count, " ", count == 1 ? one : more);
}

std::string TotalsText(const ConformanceReport& report) {
  const ReportTotals totals = TotalsOf(report);
  std::string text = absl::StrCat(
      Count(totals.claims_hold, "claim holds", "claims hold"), ", ",
      totals.claims_in_part, " in part, ", totals.claims_not_run, " not run, ",
      Count(totals.claims_failed, "fails", "fail"), "; ",
      Count(totals.tests_passed, "test passes", "tests pass"), ", ",
      Count(totals.tests_failed, "fails", "fail"), ", ", totals.tests_skipped,
      " skipped");
  if (totals.targets_older > 0) {
    absl::StrAppend(&text, "; ", totals.targets_older, " of ",
                    report.targets.size(),
                    " targets older than the checked-out commit");
  }
  if (totals.configurations.size() > 1) {
    absl::StrAppend(&text, "; ", totals.configurations.size(),
                    " configurations mixed");
  }
  return text;
}

std::string Failures(const ConformanceReport& report) {
  if (report.failures.empty()) return "";
  std::string text = "**Failed**\n\n";
  for (const Failure& failure : report.failures) {
    absl::StrAppend(&text, "- ", MarkdownCode(failure.target));
    if (!failure.test.empty()) {
      absl::StrAppend(&text, ", ", MarkdownText(failure.test));
    }
    absl::StrAppend(&text, ": ", MarkdownText(failure.what), "\n");
  }
  for (const ClaimReport& claim : report.claims) {
    for (const std::string& test : claim.failed_tests) {
      absl::StrAppend(&text, "- ", MarkdownText(claim.name),
                      ": not shown to hold, since part of ", MarkdownCode(test),
                      " failed and recorded nothing\n");
    }
  }
  return text + "\n";
}

// The beginning of each of a claim's rows.
std::string NameCell(const ClaimReport& claim) {
  return absl::StrCat("| ", claim.failed_tests.empty() ? "" : "**FAIL** ",
                      MarkdownText(claim.name, kInTable), " | ");
}

std::string Row(const ConformanceReport& report, const ClaimReport& claim,
                const ClaimRow& row) {
  std::string text = absl::StrCat(
      NameCell(claim), MarkdownText(row.backend, kInTable), " | ",
      MarkdownText(absl::StrJoin(row.types, ", "), kInTable), " |");
  for (const int world_size : report.world_sizes) {
    const auto found = row.cells.find(world_size);
    const bool asked = found != row.cells.end();
    const bool failed = asked && VerdictOf(found->second) == Verdict::kFailed;
    const char* const strong = failed ? "**" : "";
    absl::StrAppend(&text, " ", strong, asked ? CellText(found->second) : "-",
                    strong, " |");
  }
  return text + "\n";
}

const char* WordOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds:
      return "passed";
    case Verdict::kInPart:
      return "passed in part";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kNotRun:
      return "not run";
    case Verdict::kFailed:
      break;
  }
  return "**FAIL**";
}

std::string TableRow(const ConformanceReport& report, const ClaimReport& claim,
                     const GpuRow& row) {
  std::string text =
      absl::StrCat(NameCell(claim), MarkdownText(row.backend, kInTable), " | ",
                   WordOf(row.verdict), " |");
  for (size_t i = 0; i < report.world_sizes.size(); ++i) text += " |";
  return text + "\n";
}

std::string Table(const ConformanceReport& report) {
  if (report.world_sizes.empty()) return "No test recorded a claim.\n\n";
  std::string text = "| claim | backend | type |";
  std::string rule = "| --- | --- | --- |";
  for (size_t i = 0; i < report.world_sizes.size(); ++i) {
    const int world_size = report.world_sizes[i];
    absl::StrAppend(
        &text, " ",
        i > 0 ? absl::StrCat(world_size) : Count(world_size, "rank", "ranks"),
        " |");
    absl::StrAppend(&rule, " ---: |");
  }
  absl::StrAppend(&text, "\n", rule, "\n");
  for (const ClaimReport& claim : report.claims) {
    for (const ClaimRow& row : claim.rows) {
      absl::StrAppend(&text, Row(report, claim, row));
    }
    for (const GpuRow& row : claim.gpu_rows) {
      absl::StrAppend(&text, TableRow(report, claim, row));
    }
  }
  return absl::StrCat(
      text,
      "\nA number is the largest error over the allowed error: up to 1 the "
      "claim holds. exact: no error is allowed, and there is none. in part: "
      "other tests of it were skipped or not run. FAIL: a test failed, or "
      "measured more; before a claim's name: a test of it failed without "
      "saying where. skip: skipped. not run: no test left a result. -: not "
      "asked. mixed: two threads in each process.\n\n");
}

// The tests that were skipped, and the rows of which cells were not run.
std::string Skipped(const ConformanceReport& report) {
  std::string text;
  for (const Skip& skip : report.skips) {
    absl::StrAppend(&text, "- skipped: ", MarkdownCode(skip.target), ", ",
                    Count(skip.tests, "test: ", "tests: "),
                    MarkdownText(skip.why), "\n");
  }
  for (const ClaimReport& claim : report.claims) {
    for (const MissingCells& row : claim.missing) {
      absl::StrAppend(&text, "- not run: ", MarkdownText(claim.name), ", ",
                      MarkdownText(row.backend), ", ", row.cells, " of the ",
                      Count(row.expected, "cell", "cells"), " of ",
                      MarkdownCode(row.test), "\n");
    }
    for (const GpuRow& row : claim.gpu_rows) {
      absl::StrAppend(&text, "- ", WordOf(row.verdict), ": ",
                      MarkdownText(claim.name), ", ", MarkdownText(row.backend),
                      ", by ", MarkdownCode(row.test),
                      row.why.empty() ? "" : ": ", MarkdownText(row.why),
                      ". It asks: ", MarkdownText(row.asks), "\n");
    }
  }
  return text.empty() ? "" : text + "\n";
}

// The page and the JSON have them all.
std::string FirstOf(std::vector<std::string> labels) {
  constexpr size_t kMost = 5;
  if (labels.size() <= kMost) return absl::StrJoin(labels, ",");
  const size_t more = labels.size() - kMost;
  labels.resize(kMost);
  return absl::StrCat(absl::StrJoin(labels, ","), " and ", more, " more");
}

// What is old, and what was built differently.
std::string Mixture(const ConformanceReport& report) {
  const ReportTotals totals = TotalsOf(report);
  std::string text;
  if (totals.targets_older > 0) {
    absl::StrAppend(&text,
                    "- older than the checked-out commit, which was made ",
                    report.committed,
                    ", so of another tree unless Bazel found nothing changed:");
    std::vector<std::string> labels;
    for (const TargetSummary& target : report.targets) {
      if (target.older) labels.push_back(" " + MarkdownCode(target.label));
    }
    absl::StrAppend(&text,
                    labels.size() == report.targets.size()
                        ? std::string(" all targets")
                        : FirstOf(labels),
                    "\n");
  }
  for (const auto& [configuration, targets] : totals.configurations) {
    absl::StrAppend(
        &text, "- ",
        Count(targets, "target records claims", "targets record claims"),
        ", built: ", MarkdownText(configuration), "\n");
  }
  return text.empty() ? "" : text + "\n";
}

std::string From(const ConformanceReport& report) {
  std::string text = absl::StrCat(
      MarkdownText(report.machine.cpu), ", ",
      Count(report.machine.cores, "core", "cores"), ", ",
      MarkdownText(report.machine.system), "; checked out: ",
      report.commit.empty() ? "unknown" : MarkdownText(report.commit));
  for (const auto& [what, version] : report.versions) {
    absl::StrAppend(&text, "; ", MarkdownText(what), " ",
                    MarkdownText(version));
  }
  if (!report.first_started.empty()) {
    absl::StrAppend(&text, "; tests begun ", MarkdownText(report.first_started),
                    " to ", MarkdownText(report.last_started));
  }
  return absl::StrCat(text, "; ", MarkdownCode(report.command), "\n");
}

}  // namespace

std::string FormatReportMarkdown(const ConformanceReport& report) {
  return absl::StrCat("### Conformance: ", TotalsText(report), "\n\n",
                      Failures(report), Table(report), Skipped(report),
                      Mixture(report), From(report));
}

}  // namespace lockstep
