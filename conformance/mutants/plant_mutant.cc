// Plants bugs in LeNet's training and asks the checks.
#include "conformance/mutants/plant_mutant.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/checks.h"
#include "conformance/rejection.h"
#include "conformance/trace.h"
#include "conformance/training_run.h"

namespace lockstep {

absl::StatusOr<std::vector<Rejection>> PlantMutation(const Mutation& mutation) {
  RunOptions options;
  options.world_size = 3;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankTrace> ranks,
                            RunTraining(options, mutation));
  const Expectation want = OneRank(options);
  std::vector<Rejection> rejections;
  for (const Check& check : AllChecks()) {
    const absl::Status status = check.run(want, ranks);
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kDataLoss) {
      return absl::InternalError(
          absl::StrCat(check.name, " failed: ", status.ToString()));
    }
    rejections.push_back({check.name, std::string(status.message())});
  }
  return rejections;
}

}  // namespace lockstep
