#include "conformance/check/check_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/json_fields.h"
#include "nlohmann/json.hpp"
#include "report/document.h"

namespace lockstep::conformance {
namespace {

// The explanation of the claims, shown on the report's page.
constexpr const char* kMethod[] = {
    "run: the trainer ends in time and writes everything that the case asks "
    "for, with finite numbers only.",
    "samples: in each step the ranks together draw one rank's samples, each "
    "once.",
    "ranks_agree: all ranks hold the same gradients and parameters, bit for "
    "bit.",
    "gradients: the first step's gradients equal those of one rank on the "
    "global batch.",
    "loss: each step's loss, weighted by the ranks' samples, equals one "
    "rank's.",
    "state: parameters and buffers after each step equal one rank's.",
    "evaluation: the metrics equal one rank's, and each sample counts once.",
    "Eight times the trainer's own rounding is allowed. One rank shows this "
    "rounding when it computes each step's samples in another order.",
};

bool Has(const CaseReport& c, Outcome outcome) {
  return std::ranges::any_of(
      c.verdicts, [outcome](const Verdict& v) { return v.outcome == outcome; });
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

// Returns the verdicts with an outcome. If the outcome is kSkipped, only cases
// in which every claim was skipped count, with one verdict each: after a
// failure, the failed claim explains the skipped ones.
std::vector<const Verdict*> VerdictsWith(const CheckReport& report,
                                         Outcome outcome) {
  std::vector<const Verdict*> found;
  for (const CaseReport& c : report.cases) {
    const bool whole = std::ranges::all_of(c.verdicts, [](const Verdict& v) {
      return v.outcome == Outcome::kSkipped;
    });
    for (const Verdict& verdict : c.verdicts) {
      if (verdict.outcome != outcome) continue;
      if (outcome == Outcome::kSkipped && !whole) continue;
      found.push_back(&verdict);
      if (outcome == Outcome::kSkipped) break;  // One line per case.
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

// A verdict, and the cases that have the same one.
struct Finding {
  const Verdict* verdict;
  std::vector<std::string> cases;
};

bool SayTheSame(const Verdict& a, const Verdict& b) {
  const auto said = [](const Verdict& v) {
    return std::tie(v.claim, v.cause, v.what, v.why, v.fix, v.cited,
                    v.last_lines);
  };
  return said(a) == said(b);
}

// Groups equal verdicts, in the order of their first occurrence.
std::vector<Finding> FindingsOf(const std::vector<const Verdict*>& verdicts) {
  std::vector<Finding> findings;
  for (const Verdict* const verdict : verdicts) {
    const auto same = std::ranges::find_if(findings, [&](const Finding& f) {
      return SayTheSame(*f.verdict, *verdict);
    });
    if (same == findings.end()) {
      findings.push_back({verdict, {verdict->case_name}});
    } else {
      same->cases.push_back(verdict->case_name);
    }
  }
  return findings;
}

// Returns "uneven", or "3 cases (even, uneven, resume)".
std::string CasesText(const Finding& finding) {
  if (finding.cases.size() == 1) return finding.cases[0];
  return absl::StrCat(finding.cases.size(), " cases (",
                      absl::StrJoin(finding.cases, ", "), ")");
}

// Returns a section titled "uneven, gradients: failed (mean_of_means)", with
// the verdict's sentences.
report::Section FindingSection(const Finding& finding) {
  const Verdict& verdict = *finding.verdict;
  report::Section section;
  section.title =
      absl::StrCat(CasesText(finding), ", ", ClaimName(verdict.claim), ": ",
                   OutcomeName(verdict.outcome));
  if (verdict.cause != Cause::kNone) {
    absl::StrAppend(&section.title, " (", CauseName(verdict.cause), ")");
  }
  const std::pair<const char*, const std::string&> points[] = {
      {"What", verdict.what},
      {"Why", verdict.why},
      {"Fix", verdict.fix},
      {"Documented", verdict.cited},
      {"By hand", verdict.by_hand}};
  for (const auto& [name, text] : points) {
    if (!text.empty()) section.points.push_back({name, text});
  }
  if (!verdict.last_lines.empty()) {
    section.points.push_back({"Output", "the trainer's last lines:"});
  }
  section.output = verdict.last_lines;
  return section;
}

report::Value CaseValue(const CaseReport& c) {
  report::Value verdicts = report::Value::Array();
  for (const Verdict& verdict : c.verdicts) {
    verdicts.Add({{"claim", ClaimName(verdict.claim)},
                  {"outcome", OutcomeName(verdict.outcome)},
                  {"error_over_allowed", verdict.error_over_allowed},
                  {"cell", CellOf(c, verdict.claim)},
                  {"cause", CauseName(verdict.cause)},
                  {"what", verdict.what},
                  {"why", verdict.why},
                  {"fix", verdict.fix},
                  {"cited", verdict.cited},
                  {"last_lines", verdict.last_lines},
                  {"by_hand", report::TextOrNull(verdict.by_hand)}});
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
          {"totals",
           {{"passed", totals.passed},
            {"failed", totals.failed},
            {"documented", totals.documented},
            {"skipped", totals.skipped}}},
          {"cases", cases}};
}

// Reads the member `key` and returns the element of `all` with that name.
// `name_of` gives an element's name.
template <typename Range, typename NameOf>
auto ReadNamed(JsonFields& fields, const char* key, const Range& all,
               NameOf name_of) {
  std::vector<std::string> names;
  for (const auto one : all) names.push_back(name_of(one));
  const auto found = std::ranges::find(names, fields.OneOf(key, names));
  return all[found == names.end() ? 0 : found - names.begin()];
}

absl::StatusOr<Documented> ReadOne(const nlohmann::json& json,
                                   const std::string& path, size_t index) {
  JsonFields fields(json, path, absl::StrCat("[", index, "]"));
  Documented read;
  read.case_name = fields.Text("case");
  read.claim = ReadNamed(fields, "claim", kAllClaims, ClaimName);
  read.cause = ReadNamed(fields, "cause", AllCauses(), CauseName);
  read.cited = fields.Text("cited");
  LOCKSTEP_RETURN_IF_ERROR(fields.Finish());
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
  const auto found = std::ranges::find(c.verdicts, claim, &Verdict::claim);
  if (found == c.verdicts.end()) return "-";
  constexpr const char* kCells[] = {"ok", "FAIL", "docs", "skip"};
  if (found->outcome != Outcome::kPassed ||
      found->error_over_allowed.value_or(0) == 0) {
    return kCells[static_cast<size_t>(found->outcome)];
  }
  return absl::StrFormat("%.2f", *found->error_over_allowed);
}

report::Document CheckDocument(const CheckReport& report) {
  report::Document document;
  document.name = "lockstep.check";
  document.title = "Lockstep check";
  document.verdict = TotalsText(report);
  document.verdict_tone =
      TotalsOf(report).failed > 0 ? report::Tone::kBad : report::Tone::kGood;
  document.about = absl::StrCat(
      report.software.empty() ? "The trainer" : report.software, ": ",
      report::Counted(report.world_size, "rank"), " against 1; ",
      report::Counted(static_cast<int64_t>(report.cases.size()), "case"));
  document.origin = report.origin;
  document.sections.push_back(CasesSection(report));
  for (const Outcome outcome : {Outcome::kFailed, Outcome::kDocumented}) {
    for (const Finding& finding : FindingsOf(VerdictsWith(report, outcome))) {
      document.sections.push_back(FindingSection(finding));
    }
  }
  document.terms = {
      {"a number", "the largest error over its allowed error."},
      {"docs", "the claim fails as the trainer's documentation says."},
      {"skip", "the claim was not judged, or an earlier one failed."},
      {"-", "the case does not ask for the claim."}};
  for (const Finding& finding :
       FindingsOf(VerdictsWith(report, Outcome::kSkipped))) {
    document.remarks.push_back(
        absl::StrCat(CasesText(finding), ", skipped: ", finding.verdict->what));
  }
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
    const auto found =
        std::ranges::find_if(documented, [&](const Documented& known) {
          return known.case_name == verdict.case_name &&
                 known.claim == verdict.claim && known.cause == verdict.cause;
        });
    if (found == documented.end()) continue;
    verdict.outcome = Outcome::kDocumented;
    verdict.cited = found->cited;
  }
}

}  // namespace lockstep::conformance
