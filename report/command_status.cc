// Standard error, and the environment.
#include "report/command_status.h"

#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {

int Fail(absl::string_view command, const absl::Status& status) {
  const std::string line = absl::StrCat(command, ": ", status.message(), "\n");
  std::fputs(line.c_str(), stderr);
  return absl::StartsWith(status.message(), "--") ? kUsageError : kFailure;
}

absl::Status CheckNotLaunched() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "it starts its ranks itself: run it without a launcher, and without RANK "
      "and WORLD_SIZE in the environment");
}

}  // namespace lockstep
