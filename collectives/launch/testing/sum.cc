// A rank that joins the group and adds up: prints the sum of all ranks' numbers
// from 1 on.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {
namespace {

absl::StatusOr<std::string> Sum() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("no launcher started this process");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> communicator,
      JoinLaunchedGroup(*environment, {.timeout = absl::Minutes(1)}));
  int64_t sum = environment->rank + 1;
  LOCKSTEP_RETURN_IF_ERROR(
      communicator->AllReduce(std::span<int64_t>(&sum, 1)));
  return absl::StrCat("sum ", sum, "\n");
}

}  // namespace
}  // namespace lockstep

int main() {
  const absl::StatusOr<std::string> text = lockstep::Sum();
  if (!text.ok()) {
    std::fprintf(stderr, "sum: %s\n",
                 std::string(text.status().message()).c_str());
    return 1;
  }
  // At once, so that lines of ranks do not mix.
  std::fwrite(text->data(), 1, text->size(), stdout);
  return 0;
}
