// Plants bugs in the network's training and asks the checks.
#include "conformance/network/plant_mutant.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/network/one_rank_path.h"
#include "conformance/rejection.h"

namespace lockstep {
namespace {

// Of the first step.
absl::StatusOr<std::vector<Rounding>> MeasureFirst(
    const NetworkMutation& mutation) {
  LOCKSTEP_ASSIGN_OR_RETURN(const OneRankPath path,
                            TakeOneRankPath(/*steps=*/1, mutation));
  return path.rounding;
}

// Of the product without a bug.
const absl::StatusOr<std::vector<Rounding>>& FirstRounding() {
  static const auto& rounding = *new absl::StatusOr<std::vector<Rounding>>(
      MeasureFirst(NetworkMutation()));
  return rounding;
}

}  // namespace

absl::StatusOr<std::vector<Rejection>> PlantNetworkMutant(
    const NetworkMutant& mutant) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Rounding> rounding,
      mutant.everywhere ? MeasureFirst(mutant.mutation) : FirstRounding());
  LOCKSTEP_ASSIGN_OR_RETURN(const NetworkTrace trace,
                            RunNetwork(mutant.run, mutant.mutation));
  const NetworkVerdicts verdicts = CheckNetwork(mutant.run, rounding, trace);
  std::vector<Rejection> rejections;
  for (const std::string& check : NetworkCheckNames()) {
    const absl::Status& status = verdicts.checks.at(check);
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kDataLoss) {
      return absl::InternalError(
          absl::StrCat(check, " failed: ", status.ToString()));
    }
    rejections.push_back({check, std::string(status.message())});
  }
  return rejections;
}

}  // namespace lockstep
