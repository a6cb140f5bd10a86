// The report for a terminal, a file and a pull request.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/expected_rows.h"
#include "conformance/report/test_xml.h"

namespace lockstep {
namespace {

// Text that Markdown shows as it is, also in a cell of a table.
std::string Plain(absl::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c == '<') {
      plain += "&lt;";
      continue;
    }
    if (c == '|' || c == '*' || c == '`' || c == '[' || c == ']' || c == '\\') {
      plain.push_back('\\');
    }
    plain.push_back(absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' '
                                                                       : c);
  }
  return plain;
}

// Not in a cell of a table, where a bar would end it.
std::string Code(absl::string_view text) {
  std::string code = "`";
  for (const char c : text) {
    const bool control = absl::ascii_iscntrl(static_cast<unsigned char>(c));
    code.push_back(control ? ' ' : c == '`' ? '\'' : c);
  }
  return code + "`";
}

std::string Count(int64_t count, const char* one, const char* more) {
  return absl::StrCat(count, " ", count == 1 ? one : more);
}

std::string TotalsText(const ReportTotals& totals) {
  std::string text = Count(totals.claims_hold, "claim holds", "claims hold");
  absl::StrAppend(&text, ", ", Count(totals.claims_failed, "fails", "fail"));
  if (totals.claims_not_run > 0) {
    absl::StrAppend(&text, ", ", totals.claims_not_run, " not run");
  }
  absl::StrAppend(&text, "; ",
                  Count(totals.tests_passed, "test passes", "tests pass"), ", ",
                  Count(totals.tests_failed, "fails", "fail"));
  if (totals.tests_skipped > 0) {
    absl::StrAppend(&text, ", ", totals.tests_skipped, " skipped");
  }
  return text;
}

std::string Failures(const ConformanceReport& report) {
  if (report.failures.empty()) return "";
  std::string text = "**Failed**\n\n";
  for (const Failure& failure : report.failures) {
    absl::StrAppend(&text, "- ", Code(failure.target));
    if (!failure.test.empty()) {
      absl::StrAppend(&text, ", ", Plain(failure.test));
    }
    absl::StrAppend(&text, ": ", Plain(failure.what), "\n");
  }
  for (const ClaimReport& claim : report.claims) {
    for (const std::string& test : claim.failed_tests) {
      absl::StrAppend(&text, "- ", Plain(claim.name),
                      ": not shown to hold, since part of ", Code(test),
                      " failed and recorded nothing\n");
    }
  }
  return text + "\n";
}

// The beginning of each of a claim's rows.
std::string NameCell(const ClaimReport& claim) {
  return absl::StrCat("| ", claim.failed_tests.empty() ? "" : "**FAIL** ",
                      Plain(claim.name), " | ");
}

std::string Row(const ConformanceReport& report, const ClaimReport& claim,
                const ClaimRow& row) {
  std::string text = absl::StrCat(NameCell(claim), Plain(row.backend), " | ",
                                  Plain(absl::StrJoin(row.types, ", ")), " |");
  for (const int world_size : report.world_sizes) {
    const auto found = row.cells.find(world_size);
    const std::string cell =
        found == row.cells.end() ? "-" : CellText(found->second);
    const bool failed = found != row.cells.end() &&
                        found->second.outcome == TestOutcome::kFailed;
    const char* const strong = failed ? "**" : "";
    absl::StrAppend(&text, " ", strong, cell, strong, " |");
  }
  return text + "\n";
}

// A row of which nothing was measured.
std::string EmptyRow(const ConformanceReport& report, const ClaimReport& claim,
                     const std::string& backend, const char* says) {
  std::string text =
      absl::StrCat(NameCell(claim), Plain(backend), " | ", says, " |");
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
    for (const ExpectedRow& row : claim.missing) {
      absl::StrAppend(&text,
                      EmptyRow(report, claim, row.backend,
                               row.skipped.empty() ? "not run" : "skip"));
    }
  }
  return absl::StrCat(
      text,
      "\nA number is the largest error over the allowed error: up to 1 the "
      "claim holds. exact: no error is allowed, and there is none. FAIL: a "
      "test failed, or measured more; before a claim's name: a test of it "
      "failed without saying where. skip: skipped. not run: no test left a "
      "result. -: not asked. mixed: two threads in each process.\n\n");
}

// The tests that were skipped, and the claims of which none was run.
std::string Skipped(const ConformanceReport& report) {
  std::string text;
  for (const Skip& skip : report.skips) {
    absl::StrAppend(&text, "- skipped: ", Code(skip.target), ", ",
                    Count(skip.tests, "test: ", "tests: "), Plain(skip.why),
                    "\n");
  }
  for (const ClaimReport& claim : report.claims) {
    for (const ExpectedRow& row : claim.missing) {
      absl::StrAppend(
          &text, row.skipped.empty() ? "- not run: " : "- skipped: ",
          Plain(claim.name), ", ", Plain(row.backend), ", by ", Code(row.test),
          row.skipped.empty() ? "" : ": ", Plain(row.skipped), "\n");
    }
  }
  return text.empty() ? "" : text + "\n";
}

std::string From(const ConformanceReport& report) {
  std::string text =
      absl::StrCat(Plain(report.machine.cpu), ", ",
                   Count(report.machine.cores, "core", "cores"), ", ",
                   Plain(report.machine.system), "; checked out: ",
                   report.commit.empty() ? "unknown" : Plain(report.commit));
  for (const auto& [what, version] : report.versions) {
    absl::StrAppend(&text, "; ", Plain(what), " ", Plain(version));
  }
  if (!report.first_started.empty()) {
    absl::StrAppend(&text, "; tests begun ", Plain(report.first_started),
                    " to ", Plain(report.last_started));
  }
  return absl::StrCat(text, "; ", Code(report.command), "\n");
}

}  // namespace

std::string FormatReportMarkdown(const ConformanceReport& report) {
  return absl::StrCat("### Conformance: ", TotalsText(TotalsOf(report)), "\n\n",
                      Failures(report), Table(report), Skipped(report),
                      From(report));
}

}  // namespace lockstep
