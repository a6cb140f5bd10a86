#include "conformance/check/check_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/protocol/json_fields.h"
#include "nlohmann/json.hpp"
#include "report/document.h"
#include "report/format.h"

namespace lockstep {
namespace {

// For a reader of the page.
constexpr const char* kMethod[] = {
    "run: the trainer ends in time, writes what it was asked for, and nothing "
    "that is not finite.",
    "samples: in each step the ranks together draw what one rank draws: none "
    "twice, none left out.",
    "ranks_agree: all ranks hold the same gradients and parameters, to the "
    "bit.",
    "gradients: those of the first step are one rank's on the global batch.",
    "loss: each step's, weighted by the ranks' samples, is one rank's.",
    "state: parameters and buffers after each step are one rank's.",
    "evaluation: the metrics are one rank's, and each sample counts once.",
    "What is allowed is eight times the trainer's own rounding, which one rank "
    "shows by computing each step's samples in another order.",
};

bool Has(const CaseReport& c, Outcome outcome) {
  return std::any_of(
      c.verdicts.begin(), c.verdicts.end(),
      [outcome](const Verdict& v) { return v.outcome == outcome; });
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

// The verdicts with an outcome, but not the claims that were skipped because an
// earlier one of their case failed.
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

report::Cell ToneOf(const std::string& text) {
  if (text == "FAIL") return {text, report::Tone::kBad};
  const bool holds = text != "docs" && text != "skip" && text != "-";
  return {text, holds ? report::Tone::kGood : report::Tone::kPlain};
}

report::Section CasesSection(const CheckReport& report) {
  report::Section section;
  report::Table& table = section.table;
  table.columns.push_back({.title = "case", .left = true});
  for (const Claim claim : kAllClaims) {
    table.columns.push_back({.title = ClaimName(claim)});
  }
  table.columns.push_back({.title = "seconds"});
  for (const CaseReport& c : report.cases) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(c.name);
    for (const Claim claim : kAllClaims)
      row.push_back(ToneOf(CellOf(c, claim)));
    row.emplace_back(absl::StrFormat("%.1f", c.seconds));
  }
  return section;
}

// "uneven, gradients: failed (mean_of_means)", and its sentences.
report::Section Finding(const Verdict& verdict) {
  report::Section section;
  section.title =
      absl::StrCat(verdict.case_name, ", ", ClaimName(verdict.claim), ": ",
                   OutcomeName(verdict.outcome));
  if (verdict.cause != Cause::kNone) {
    absl::StrAppend(&section.title, " (", CauseName(verdict.cause), ")");
  }
  for (const std::string& sentence : {verdict.what, verdict.why, verdict.fix}) {
    if (!sentence.empty()) section.notes.push_back(sentence);
  }
  if (!verdict.cited.empty()) {
    section.notes.push_back("Documented: " + verdict.cited);
  }
  return section;
}

report::Value CaseValue(const CaseReport& c) {
  report::Value verdicts = report::Value::Array();
  for (const Verdict& verdict : c.verdicts) {
    verdicts.Add(
        report::Value{{"claim", ClaimName(verdict.claim)},
                      {"outcome", OutcomeName(verdict.outcome)},
                      {"error_over_allowed", verdict.error_over_allowed},
                      {"cell", CellOf(c, verdict.claim)},
                      {"cause", CauseName(verdict.cause)},
                      {"what", verdict.what},
                      {"why", verdict.why},
                      {"fix", verdict.fix},
                      {"cited", verdict.cited}});
  }
  return {{"name", c.name},
          {"about", c.about},
          {"seconds", c.seconds},
          {"verdicts", verdicts}};
}

report::Value DataOf(const CheckReport& report) {
  report::Value cases = report::Value::Array();
  for (const CaseReport& c : report.cases) cases.Add(CaseValue(c));
  const CheckTotals totals = TotalsOf(report);
  return {{"software", report.software},
          {"world_size", report.world_size},
          {"totals", report::Value{{"passed", totals.passed},
                                   {"failed", totals.failed},
                                   {"documented", totals.documented},
                                   {"skipped", totals.skipped}}},
          {"cases", cases}};
}

Claim ClaimNamed(const std::string& name) {
  return *std::find_if(std::begin(kAllClaims), std::end(kAllClaims),
                       [&](Claim claim) { return ClaimName(claim) == name; });
}

Cause CauseNamed(const std::string& name) {
  const auto causes = AllCauses();
  return *std::find_if(causes.begin(), causes.end(),
                       [&](Cause cause) { return CauseName(cause) == name; });
}

absl::StatusOr<Documented> ReadOne(const nlohmann::json& json,
                                   const std::string& path, size_t index) {
  std::vector<std::string> claims, causes;
  for (const Claim claim : kAllClaims) claims.push_back(ClaimName(claim));
  for (const Cause cause : AllCauses()) causes.push_back(CauseName(cause));
  JsonFields fields(json, path, absl::StrCat("[", index, "]"));
  Documented read;
  read.case_name = fields.Text("case");
  const std::string claim = fields.OneOf("claim", claims);
  const std::string cause = fields.OneOf("cause", causes);
  read.cited = fields.Text("cited");
  LOCKSTEP_RETURN_IF_ERROR(fields.Finish());
  read.claim = ClaimNamed(claim);
  read.cause = CauseNamed(cause);
  return read;
}

}  // namespace

CheckTotals TotalsOf(const CheckReport& report) {
  CheckTotals totals;
  for (const CaseReport& c : report.cases) {
    if (Has(c, Outcome::kFailed)) {
      ++totals.failed;
    } else if (Has(c, Outcome::kDocumented)) {
      ++totals.documented;
    } else if (Has(c, Outcome::kPassed)) {
      ++totals.passed;
    } else {
      ++totals.skipped;
    }
  }
  return totals;
}

std::string CellOf(const CaseReport& c, Claim claim) {
  const auto found =
      std::find_if(c.verdicts.begin(), c.verdicts.end(),
                   [claim](const Verdict& v) { return v.claim == claim; });
  if (found == c.verdicts.end()) return "-";
  switch (found->outcome) {
    case Outcome::kFailed:
      return "FAIL";
    case Outcome::kDocumented:
      return "docs";
    case Outcome::kSkipped:
      return "skip";
    case Outcome::kPassed:
      break;
  }
  if (found->error_over_allowed == 0) return "ok";
  return absl::StrFormat("%.2f", found->error_over_allowed);
}

report::Document CheckDocument(const CheckReport& report) {
  report::Document document;
  document.name = "lockstep.check";
  document.title = "Lockstep conformance report";
  document.about = absl::StrCat(
      report.software.empty() ? "The trainer" : report.software, ": ",
      report::Counted(report.world_size, "rank"), " against 1; ",
      report::Counted(static_cast<int64_t>(report.cases.size()), "case"));
  document.origin = report.origin;
  document.sections.push_back(CasesSection(report));
  for (const Outcome outcome : {Outcome::kFailed, Outcome::kDocumented}) {
    for (const Verdict* verdict : VerdictsWith(report, outcome)) {
      document.sections.push_back(Finding(*verdict));
    }
  }
  document.terms = {{"a number", "the largest error over its allowed error."},
                    {"docs", "it fails as the trainer's documentation says."},
                    {"skip", "not judged, or an earlier claim failed."},
                    {"-", "the case does not ask."}};
  for (const Verdict* verdict : VerdictsWith(report, Outcome::kSkipped)) {
    document.remarks.push_back(
        absl::StrCat(verdict->case_name, ", skipped: ", verdict->what));
  }
  document.remarks.push_back(TotalsText(report));
  for (const CaseReport& c : report.cases) {
    document.facts.push_back({c.name, c.about});
  }
  document.method = {std::begin(kMethod), std::end(kMethod)};
  document.data = DataOf(report);
  return document;
}

absl::StatusOr<std::vector<Documented>> ParseDocumented(
    const std::string& text, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const nlohmann::json json,
                            ParseForeignJson(text, path));
  if (!json.is_array()) {
    return absl::DataLossError(absl::StrCat(path, ": is not a JSON array"));
  }
  std::vector<Documented> documented;
  for (const nlohmann::json& one : json) {
    LOCKSTEP_ASSIGN_OR_RETURN(Documented read,
                              ReadOne(one, path, documented.size()));
    documented.push_back(std::move(read));
  }
  return documented;
}

void ApplyDocumented(const std::vector<Documented>& documented,
                     std::vector<Verdict>& verdicts) {
  for (Verdict& verdict : verdicts) {
    if (verdict.outcome != Outcome::kFailed) continue;
    const auto found = std::find_if(
        documented.begin(), documented.end(), [&](const Documented& known) {
          return known.case_name == verdict.case_name &&
                 known.claim == verdict.claim && known.cause == verdict.cause;
        });
    if (found == documented.end()) continue;
    verdict.outcome = Outcome::kDocumented;
    verdict.cited = found->cited;
  }
}

}  // namespace lockstep
