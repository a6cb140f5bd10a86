// The suites in one list; what checks say, as what became of a bug.
#include "conformance/mutants/bug_suites.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

std::vector<BugSuite> AllBugSuites() {
  return {TrainingBugs(), EvaluationBugs(), SamplingBugs(), BatchNormBugs(),
          NetworkBugs(),  CollectiveBugs(), JudgeBugs()};
}

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

Caught CaughtBy(std::span<const Rejection> rejections) {
  Caught caught;
  for (const Rejection& rejection : rejections) {
    caught.checks.push_back(rejection.check);
  }
  if (!rejections.empty()) caught.diagnosis = rejections[0].message;
  return caught;
}

}  // namespace lockstep
