// The checker's report for a terminal and for a pull request.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "conformance/check/check_report.h"
#include "conformance/check/judge/verdict.h"
#include "report/terminal.h"

namespace lockstep {
namespace {

constexpr int kIndent = 2;

std::string Heading(const CheckReport& report) {
  return absl::StrCat(report.software.empty() ? "The trainer" : report.software,
                      ": ", report.world_size, " ranks against 1; ",
                      report.cases.size(),
                      report.cases.size() == 1 ? " case" : " cases");
}

std::string TotalsText(const CheckReport& report) {
  const CheckTotals totals = TotalsOf(report);
  std::string text = absl::StrCat(
      totals.passed, totals.passed == 1 ? " case holds" : " cases hold", ", ",
      totals.failed, totals.failed == 1 ? " fails" : " fail");
  if (totals.documented > 0) {
    absl::StrAppend(&text, ", ", totals.documented,
                    totals.documented == 1 ? " differs" : " differ",
                    " as documented");
  }
  if (totals.skipped > 0) {
    absl::StrAppend(&text, ", ", totals.skipped, " skipped");
  }
  return absl::StrCat(text, ".");
}

// The text wrapped, each line after kIndent spaces.
std::string Indented(absl::string_view text) {
  const std::string wrapped = WrapText(text, kTableColumns - kIndent);
  const std::string margin(kIndent, ' ');
  std::string out = absl::StrCat(
      margin, absl::StrReplaceAll(wrapped, {{"\n", "\n" + margin}}));
  out.resize(out.size() - kIndent);  // After the last line end.
  return out;
}

std::string Describe(const Verdict& verdict) {
  std::string out =
      absl::StrCat(verdict.case_name, ", ", ClaimName(verdict.claim), ": ",
                   OutcomeName(verdict.outcome));
  if (verdict.cause != Cause::kNone) {
    absl::StrAppend(&out, " (", CauseName(verdict.cause), ")");
  }
  absl::StrAppend(&out, "\n", Indented(verdict.what));
  for (const std::string& sentence : {verdict.why, verdict.fix}) {
    if (!sentence.empty()) absl::StrAppend(&out, Indented(sentence));
  }
  if (!verdict.cited.empty()) {
    absl::StrAppend(&out, Indented("Documented: " + verdict.cited));
  }
  return out;
}

// Those of an outcome, but for the claims that were skipped since an earlier
// one of their case failed.
std::vector<const Verdict*> VerdictsWith(const CheckReport& report,
                                         Outcome outcome) {
  std::vector<const Verdict*> found;
  for (const CaseReport& c : report.cases) {
    const bool whole = std::all_of(
        c.verdicts.begin(), c.verdicts.end(),
        [](const Verdict& v) { return v.outcome == Outcome::kSkipped; });
    for (const Verdict& verdict : c.verdicts) {
      if (verdict.outcome != outcome) continue;
      if (outcome == Outcome::kSkipped && !whole) continue;
      found.push_back(&verdict);
      if (outcome == Outcome::kSkipped) break;  // One line a case.
    }
  }
  return found;
}

}  // namespace

std::string FormatCheckTable(const CheckReport& report) {
  std::string out = absl::StrCat(Heading(report), "\n\n");
  size_t names = 4;
  for (const CaseReport& c : report.cases) {
    names = std::max(names, c.name.size());
  }
  absl::StrAppendFormat(&out, "%-*s", static_cast<int>(names), "case");
  for (const Claim claim : kAllClaims) {
    absl::StrAppend(&out, "  ", ClaimName(claim));
  }
  absl::StrAppend(&out, "  seconds\n");
  for (const CaseReport& c : report.cases) {
    absl::StrAppendFormat(&out, "%-*s", static_cast<int>(names), c.name);
    for (const Claim claim : kAllClaims) {
      const auto width =
          static_cast<int>(absl::string_view(ClaimName(claim)).size());
      absl::StrAppendFormat(&out, "  %*s", width, CellOf(c, claim));
    }
    absl::StrAppendFormat(&out, "  %7.1f\n", c.seconds);
  }
  absl::StrAppend(
      &out, "\n",
      WrapText("A number is the largest error over its allowed error; -: the "
               "case does not ask; skip: not asked, or an earlier claim "
               "failed.",
               kTableColumns));
  for (const Outcome outcome : {Outcome::kFailed, Outcome::kDocumented}) {
    for (const Verdict* verdict : VerdictsWith(report, outcome)) {
      absl::StrAppend(&out, "\n", Describe(*verdict));
    }
  }
  for (const Verdict* verdict : VerdictsWith(report, Outcome::kSkipped)) {
    absl::StrAppend(
        &out, "\n",
        WrapText(absl::StrCat(verdict->case_name, ", skipped: ", verdict->what),
                 kTableColumns));
  }
  return absl::StrCat(out, "\n", WrapText(TotalsText(report), kTableColumns));
}

namespace {

// Text that Markdown shows as it is, also in a cell of a table.
std::string MarkdownText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"},
                                    {"<", "&lt;"},
                                    {"*", "\\*"},
                                    {"_", "\\_"},
                                    {"`", "\\`"},
                                    {"\n", " "}});
}

}  // namespace

std::string FormatCheckMarkdown(const CheckReport& report) {
  std::string out =
      absl::StrCat("### ", MarkdownText(Heading(report)), "\n\n| case |");
  std::string rule = "| --- |";
  for (const Claim claim : kAllClaims) {
    absl::StrAppend(&out, " ", MarkdownText(ClaimName(claim)), " |");
    absl::StrAppend(&rule, " ---: |");
  }
  absl::StrAppend(&out, "\n", rule, "\n");
  for (const CaseReport& c : report.cases) {
    absl::StrAppend(&out, "| ", MarkdownText(c.name), " |");
    for (const Claim claim : kAllClaims) {
      absl::StrAppend(&out, " ", CellOf(c, claim), " |");
    }
    absl::StrAppend(&out, "\n");
  }
  absl::StrAppend(&out, "\n");
  for (const Outcome outcome :
       {Outcome::kFailed, Outcome::kDocumented, Outcome::kSkipped}) {
    for (const Verdict* verdict : VerdictsWith(report, outcome)) {
      absl::StrAppend(&out, "- **", MarkdownText(verdict->case_name), ", ",
                      MarkdownText(ClaimName(verdict->claim)), ", ",
                      OutcomeName(outcome), ":**");
      for (const std::string& sentence :
           {verdict->what, verdict->why, verdict->fix, verdict->cited}) {
        if (!sentence.empty()) {
          absl::StrAppend(&out, " ", MarkdownText(sentence));
        }
      }
      absl::StrAppend(&out, "\n");
    }
  }
  return absl::StrCat(out, "\n", TotalsText(report), " ",
                      MarkdownText(report.machine.cpu), ", ",
                      report.machine.cores, " cores, ",
                      MarkdownText(report.machine.system), "; `",
                      absl::StrReplaceAll(report.command, {{"`", "'"}}), "`\n");
}

}  // namespace lockstep
