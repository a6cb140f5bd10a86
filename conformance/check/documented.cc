// Reads the file and matches it with verdicts.
#include "conformance/check/documented.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/check/causes.h"
#include "conformance/check/verdict.h"
#include "conformance/protocol/json_fields.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

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
