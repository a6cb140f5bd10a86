// Counts, and the report as JSON.
#include "conformance/check/check_report.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "conformance/check/causes.h"
#include "conformance/check/verdict.h"
#include "nlohmann/json.hpp"
#include "report/machine_json.h"

namespace lockstep {
namespace {

bool Has(const CaseReport& c, Outcome outcome) {
  return std::any_of(
      c.verdicts.begin(), c.verdicts.end(),
      [outcome](const Verdict& v) { return v.outcome == outcome; });
}

nlohmann::ordered_json VerdictJson(const CaseReport& c,
                                   const Verdict& verdict) {
  return {{"claim", ClaimName(verdict.claim)},
          {"outcome", OutcomeName(verdict.outcome)},
          {"error_over_allowed", verdict.error_over_allowed},
          {"cell", CellOf(c, verdict.claim)},
          {"cause", CauseName(verdict.cause)},
          {"what", verdict.what},
          {"why", verdict.why},
          {"fix", verdict.fix},
          {"cited", verdict.cited}};
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

nlohmann::ordered_json CheckJson(const CheckReport& report) {
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const CaseReport& c : report.cases) {
    nlohmann::ordered_json verdicts = nlohmann::ordered_json::array();
    for (const Verdict& verdict : c.verdicts) {
      verdicts.push_back(VerdictJson(c, verdict));
    }
    cases.push_back({{"name", c.name},
                     {"about", c.about},
                     {"seconds", c.seconds},
                     {"verdicts", verdicts}});
  }
  const CheckTotals totals = TotalsOf(report);
  return {{"command", report.command},
          {"software", report.software},
          {"world_size", report.world_size},
          {"created", report.created},
          {"commit", report.commit},
          {"machine", MachineJson(report.machine)},
          {"totals",
           {{"passed", totals.passed},
            {"failed", totals.failed},
            {"documented", totals.documented},
            {"skipped", totals.skipped}}},
          {"cases", cases}};
}

}  // namespace lockstep
