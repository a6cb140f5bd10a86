#include "conformance/check/check_report.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/protocol/json_fields.h"
#include "nlohmann/json.hpp"
#include "report/write_json.h"

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
