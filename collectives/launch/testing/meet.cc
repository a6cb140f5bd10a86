// A rank that only meets the others: prints what each of them said.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

absl::StatusOr<std::string> Meet() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("no launcher started this process");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenLaunchedRendezvous(*environment, absl::Minutes(1)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      rendezvous->Exchange(absl::StrCat("r", environment->rank)));
  return absl::StrCat("met ", absl::StrJoin(said, ","), "\n");
}

}  // namespace
}  // namespace lockstep

int main() {
  const absl::StatusOr<std::string> text = lockstep::Meet();
  if (!text.ok()) {
    std::fprintf(stderr, "meet: %s\n",
                 std::string(text.status().message()).c_str());
    return 1;
  }
  // At once, so that lines of ranks do not mix.
  std::fwrite(text->data(), 1, text->size(), stdout);
  return 0;
}
