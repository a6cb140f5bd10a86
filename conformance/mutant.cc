#include "conformance/mutant.h"

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep::conformance {

absl::StatusOr<Caught> CaughtBy(const absl::Status& status) {
  if (status.ok()) return Caught{};
  if (status.code() != absl::StatusCode::kDataLoss) return status;
  const std::string message(status.message());
  const size_t end = message.find(": ");
  if (end == std::string::npos) {
    return absl::InternalError(
        absl::StrCat("no check's name begins '", message, "'"));
  }
  return Caught{{message.substr(0, end)}, message.substr(end + 2)};
}

absl::StatusOr<Caught> CaughtBy(
    std::span<const std::pair<std::string, absl::Status>> verdicts,
    absl::string_view naming) {
  Caught caught;
  for (const auto& [check, status] : verdicts) {
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kDataLoss) {
      return absl::InternalError(
          absl::StrCat(check, " failed: ", status.ToString()));
    }
    if (naming.empty() ? caught.checks.empty() : check == naming) {
      caught.diagnosis = std::string(status.message());
    }
    caught.checks.push_back(check);
  }
  return caught;
}

std::string FullName(const Mutant& mutant) {
  return absl::StrCat(mutant.folder, ".", mutant.name);
}

void PrintTo(const Mutant& mutant, std::ostream* out) {
  *out << mutant.planted;
}

bool IsCaught(const Mutant& mutant, const Caught& caught) {
  return std::all_of(mutant.checks.begin(), mutant.checks.end(),
                     [&](const std::string& check) {
                       return std::find(caught.checks.begin(),
                                        caught.checks.end(),
                                        check) != caught.checks.end();
                     });
}

bool IsNamed(const Mutant& mutant, const Caught& caught) {
  return absl::StrContains(caught.diagnosis, mutant.says);
}

absl::Status PlantAndExpectCaught(const Mutant& mutant) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Caught caught, mutant.plant());
  if (IsCaught(mutant, caught) && IsNamed(mutant, caught)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      FullName(mutant),
      IsCaught(mutant, caught) ? " is not named: " : " is missed: ",
      caught.diagnosis));
}

absl::Status ExpectNamed(const Mutant& mutant, const absl::Status& status,
                         absl::string_view where) {
  if (status.code() == absl::StatusCode::kDataLoss &&
      absl::StartsWith(status.message(),
                       absl::StrCat(mutant.checks[0], ": ")) &&
      absl::StrContains(status.message(), mutant.says)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat(where, ": ", mutant.planted, ": wanted ", mutant.checks[0],
                   " to say '", mutant.says, "', got ", status.ToString()));
}

}  // namespace lockstep::conformance
