// The report as a document, for Markdown, JSON and a page.
#include "conformance/report/conformance_document.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "conformance/report/conformance_report.h"
#include "report/document.h"

namespace lockstep::conformance {
namespace {

using report::Cell;
using report::Counted;
using report::Section;
using report::Table;
using report::Tone;
using report::Value;

std::string Count(int64_t count, const char* one, const char* more) {
  return absl::StrCat(count, " ", count == 1 ? one : more);
}

const char* NameOf(ClaimState state) {
  constexpr const char* kNames[] = {"passed", "in_part", "skipped", "not_run",
                                    "failed"};
  return kNames[static_cast<size_t>(state)];
}

// Returns the state in words for a reader.
std::string WordsOf(ClaimState state) {
  if (state == ClaimState::kInPart) return "passed in part";
  if (state == ClaimState::kFailed) return "FAIL";
  return absl::StrReplaceAll(NameOf(state), {{"_", " "}});
}

Tone ToneOf(ClaimState state) {
  if (state == ClaimState::kHolds) return Tone::kGood;
  return state == ClaimState::kFailed ? Tone::kBad : Tone::kPlain;
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
  if (totals.gpu_rows_skipped > 0) {
    absl::StrAppend(&text, "; ",
                    Count(totals.gpu_rows_skipped, "GPU row", "GPU rows"),
                    " skipped");
  }
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

Section FailuresSection(const ConformanceReport& report) {
  Section section = {.title = "Failed"};
  for (const Failure& failure : report.failures) {
    section.notes.push_back(absl::StrCat(failure.target,
                                         failure.test.empty() ? "" : ", ",
                                         failure.test, ": ", failure.what));
  }
  for (const ClaimReport& claim : report.claims) {
    for (const std::string& test : claim.failed_tests) {
      section.notes.push_back(
          absl::StrCat(claim.name, ": not shown to hold, since part of ", test,
                       " failed and recorded nothing"));
    }
  }
  return section;
}

// Returns the first cells of each row of a claim.
std::vector<Cell> RowOf(const ClaimReport& claim, const std::string& backend) {
  if (claim.failed_tests.empty()) return {claim.name, backend};
  return {{absl::StrCat("FAIL ", claim.name), Tone::kBad}, backend};
}

Section ClaimsSection(const ConformanceReport& report) {
  Section section = {.title = "Claims",
                     .about =
                         "By number of ranks; a dash: no test asks the claim "
                         "at that number."};
  if (report.world_sizes.empty()) {
    section.about = "No test recorded a claim.";
    return section;
  }
  Table& table = section.table;
  for (const char* title : {"claim", "backend", "type"}) {
    table.columns.push_back({.title = title, .left = true});
  }
  for (const int world_size : report.world_sizes) {
    table.columns.push_back({.title = table.columns.size() > 3
                                          ? absl::StrCat(world_size)
                                          : Counted(world_size, "rank")});
  }
  for (const ClaimReport& claim : report.claims) {
    for (const ClaimRow& row : claim.rows) {
      std::vector<Cell>& cells =
          table.rows.emplace_back(RowOf(claim, row.backend));
      cells.emplace_back(absl::StrJoin(row.types, ", "));
      for (const int world_size : report.world_sizes) {
        const auto found = row.cells.find(world_size);
        cells.push_back(found == row.cells.end()
                            ? Cell("-")
                            : Cell(CellText(found->second),
                                   ToneOf(StateOf(found->second))));
      }
    }
    for (const GpuRow& row : claim.gpu_rows) {
      table.rows.emplace_back(RowOf(claim, row.backend))
          .emplace_back(WordsOf(row.state), ToneOf(row.state));
    }
  }
  return section;
}

// Lists the skipped tests, and the rows with cells that were not run.
Section SkippedSection(const ConformanceReport& report) {
  Section section = {.title = "Skipped or not run"};
  std::vector<std::string>& notes = section.notes;
  for (const Skip& skip : report.skips) {
    notes.push_back(absl::StrCat("skipped: ", skip.target, ", ",
                                 Counted(skip.tests, "test"), ": ", skip.why));
  }
  for (const ClaimReport& claim : report.claims) {
    for (const MissingCells& row : claim.missing) {
      notes.push_back(absl::StrCat(
          "not run: ", claim.name, ", ", row.backend, ", ", row.cells,
          " of the ", Counted(row.expected, "cell"), " of ", row.test));
    }
    for (const GpuRow& row : claim.gpu_rows) {
      notes.push_back(absl::StrCat(WordsOf(row.state), ": ", claim.name, ", ",
                                   row.backend, ", by ", row.test,
                                   row.why.empty() ? "" : ": ", row.why,
                                   ". It asks: ", row.asks));
    }
  }
  return section;
}

// Returns the first few labels. The page and the JSON have all of them.
std::string FirstOf(std::vector<std::string> labels) {
  constexpr size_t kMost = 5;
  if (labels.size() <= kMost) return absl::StrJoin(labels, ", ");
  const size_t more = labels.size() - kMost;
  labels.resize(kMost);
  return absl::StrCat(absl::StrJoin(labels, ", "), " and ", more, " more");
}

// Returns remarks on old results, mixed configurations and the origin.
std::vector<std::string> Remarks(const ConformanceReport& report) {
  const ReportTotals totals = TotalsOf(report);
  std::vector<std::string> remarks;
  if (totals.targets_older > 0) {
    std::vector<std::string> labels;
    for (const TargetSummary& target : report.targets) {
      if (target.older) labels.push_back(target.label);
    }
    remarks.push_back(absl::StrCat(
        "older than the checked-out commit, which was made ", report.committed,
        ", so of another tree unless Bazel found nothing changed: ",
        labels.size() == report.targets.size() ? "all targets"
                                               : FirstOf(labels)));
  }
  for (const auto& [configuration, targets] : totals.configurations) {
    remarks.push_back(absl::StrCat(
        Count(targets, "target records claims", "targets record claims"),
        ", built: ", configuration));
  }
  std::vector<std::string> from;
  for (const auto& [what, version] : report.versions) {
    from.push_back(what + " " + version);
  }
  if (!report.first_started.empty()) {
    from.push_back(absl::StrCat("tests begun ", report.first_started, " to ",
                                report.last_started));
  }
  if (!from.empty()) remarks.push_back(absl::StrJoin(from, "; "));
  return remarks;
}

std::vector<report::Term> Terms() {
  return {{"a number",
           "the largest error over the allowed error: up to 1 the claim "
           "holds."},
          {"exact", "no error is allowed, and there is none."},
          {"in part", "other tests of the claim were skipped or not run."},
          {"FAIL",
           "a test failed, or measured more than is allowed; before a claim's "
           "name: a test of the claim failed without saying where."},
          {"skip", "skipped."},
          {"not run", "no test left a result."},
          {"-", "no test checks the claim at that number of ranks."},
          {"mixed", "two threads in each process."}};
}

template <typename Range, typename Make>
Value ArrayOf(const Range& range, const Make& make) {
  Value array = Value::Array();
  for (const auto& one : range) array.Add(make(one));
  return array;
}

template <typename Map>
Value ObjectOf(const Map& pairs) {
  Value object = Value::Object();
  for (const auto& [name, value] : pairs) object.Add(name, value);
  return object;
}

Value CellValue(const std::pair<const int, ClaimCell>& entry) {
  const auto& [world_size, cell] = entry;
  const double error = cell.error_over_allowed;
  return {{"world_size", world_size},
          {"outcome", NameOf(StateOf(cell))},
          {"error_over_allowed", std::isfinite(error) ? Value(error) : Value()},
          {"exact", cell.exact},
          {"cases", cell.cases},
          {"text", CellText(cell)}};
}

Value ClaimValue(const ClaimReport& claim) {
  return {
      {"name", claim.name},
      {"says", claim.says},
      {"allowed", claim.allowed},
      {"test", claim.test},
      {"outcome", NameOf(StateOf(claim))},
      {"failed_tests", claim.failed_tests},
      {"rows", ArrayOf(claim.rows,
                       [](const ClaimRow& row) -> Value {
                         return {{"backend", row.backend},
                                 {"types", row.types},
                                 {"cells", ArrayOf(row.cells, CellValue)}};
                       })},
      {"gpu_rows", ArrayOf(claim.gpu_rows,
                           [](const GpuRow& row) -> Value {
                             return {{"backend", row.backend},
                                     {"test", row.test},
                                     {"asks", row.asks},
                                     {"outcome", NameOf(row.state)},
                                     {"why", row.why}};
                           })},
      {"missing", ArrayOf(claim.missing, [](const MissingCells& row) -> Value {
         return {{"backend", row.backend},
                 {"test", row.test},
                 {"cells", row.cells},
                 {"expected", row.expected}};
       })}};
}

Value TotalsValue(const ReportTotals& totals) {
  return {{"claims_hold", totals.claims_hold},
          {"claims_in_part", totals.claims_in_part},
          {"claims_not_run", totals.claims_not_run},
          {"claims_failed", totals.claims_failed},
          {"tests_passed", totals.tests_passed},
          {"tests_failed", totals.tests_failed},
          {"tests_skipped", totals.tests_skipped},
          {"gpu_rows_skipped", totals.gpu_rows_skipped},
          {"targets_older", totals.targets_older},
          {"configurations", ObjectOf(totals.configurations)}};
}

Value TargetValue(const TargetSummary& target) {
  return {{"label", target.label},
          {"passed", target.passed},
          {"failed", target.failed},
          {"skipped", target.skipped},
          {"seconds", target.seconds},
          {"started", target.started},
          {"older", target.older},
          {"configurations",
           std::vector<std::string>(target.configurations.begin(),
                                    target.configurations.end())}};
}

Value DataOf(const ConformanceReport& report) {
  return {{"committed", report.committed},
          {"testlogs", report.testlogs},
          {"first_started", report.first_started},
          {"last_started", report.last_started},
          {"versions", ObjectOf(report.versions)},
          {"totals", TotalsValue(TotalsOf(report))},
          {"world_sizes", report.world_sizes},
          {"claims", ArrayOf(report.claims, ClaimValue)},
          {"failures", ArrayOf(report.failures,
                               [](const Failure& failure) -> Value {
                                 return {{"target", failure.target},
                                         {"test", failure.test},
                                         {"what", failure.what}};
                               })},
          {"skipped", ArrayOf(report.skips,
                              [](const Skip& skip) -> Value {
                                return {{"target", skip.target},
                                        {"tests", skip.tests},
                                        {"why", skip.why}};
                              })},
          {"targets", ArrayOf(report.targets, TargetValue)}};
}

Section MeaningSection(const ConformanceReport& report) {
  Section section = {.title = "What each claim says"};
  for (const char* title : {"claim", "is", "says", "allowed"}) {
    section.table.columns.push_back({.title = title, .left = true});
  }
  for (const ClaimReport& claim : report.claims) {
    const ClaimState state = StateOf(claim);
    section.table.rows.push_back(
        {claim.name,
         {WordsOf(state), ToneOf(state)},
         claim.says.empty() ? "A claim that this report does not know."
                            : claim.says,
         claim.allowed});
  }
  return section;
}

Section TargetsSection(const ConformanceReport& report) {
  Section section = {.title = "The tests",
                     .about =
                         "All tests that left a result, including the "
                         "tests of the checks themselves."};
  Table& table = section.table;
  table.columns = {{.title = "test", .left = true},
                   {.title = "passed"},
                   {.title = "failed"},
                   {.title = "skipped"},
                   {.title = "seconds"},
                   {.title = "begun"},
                   {.title = "built", .left = true}};
  for (const TargetSummary& target : report.targets) {
    const Tone tone = target.failed > 0 ? Tone::kBad : Tone::kPlain;
    table.rows.push_back(
        {target.label,
         absl::StrCat(target.passed),
         {absl::StrCat(target.failed), tone},
         absl::StrCat(target.skipped),
         absl::StrFormat("%.1f", target.seconds),
         absl::StrCat(target.started.empty() ? "unknown" : target.started,
                      target.older ? ", older than the commit" : ""),
         absl::StrJoin(target.configurations, "; ")});
  }
  return section;
}

}  // namespace

report::Document ConformanceDocument(const ConformanceReport& report) {
  report::Document document;
  document.name = "lockstep.conformance";
  document.title = absl::StrCat("Lockstep report: ", TotalsText(report));
  document.origin = report.origin;
  for (Section section : {FailuresSection(report), ClaimsSection(report),
                          SkippedSection(report)}) {
    if (section.notes.empty() && section.title != "Claims") continue;
    document.sections.push_back(std::move(section));
  }
  document.terms = Terms();
  document.remarks = Remarks(report);
  document.data = DataOf(report);
  return document;
}

report::Document ConformancePage(const ConformanceReport& report) {
  report::Document document = ConformanceDocument(report);
  document.verdict = TotalsText(report);
  document.verdict_tone =
      report.failures.empty() ? report::Tone::kPlain : report::Tone::kBad;
  document.title = "Lockstep report";
  document.about = "what the conformance tests showed";
  document.sections.push_back(MeaningSection(report));
  document.sections.push_back(TargetsSection(report));
  document.facts = {
      {"Test logs", report.testlogs},
      {"Committed", report.committed.empty() ? "unknown" : report.committed}};
  document.method = {
      "The commit and the machine are those of the report. A result belongs to "
      "the tree from which its test was built when it began. A result that is "
      "older than the checked-out commit belongs to another tree, unless Bazel "
      "found nothing changed. A result from Bazel's cache may be another "
      "machine's."};
  return document;
}

}  // namespace lockstep::conformance
