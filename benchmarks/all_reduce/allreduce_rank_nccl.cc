// A rank on a GPU, for the command `allreduce`: allreduce_rank_nccl LISTENER
// KIND ALGORITHM. KIND is "nccl" for our communicator, or "NCCL" for direct
// calls of NCCL.
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/nccl_rank.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep::benchmarks {
namespace {

absl::Status Run(const std::string& listener, const std::string& kind,
                 const char* name) {
  const std::optional<Algorithm> algorithm = ParseAlgorithm(name);
  if (!algorithm)
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not an algorithm"));
  const bool plain = kind == Name(TeamKind::kPlainNccl);
  const Team team = {plain ? TeamKind::kPlainNccl : TeamKind::kNccl,
                     *algorithm};
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  const auto serve = [&](Communicator& host) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<TurnTaker> taker,
        CreateNcclRank(host, team, environment.local_rank));
    return ServeTaker(listener, *taker);
  };
  return RunAsRanks(RankKind::kProcesses, environment.world_size,
                    GroupOptions(), serve);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  using namespace lockstep::benchmarks;
  return RankMain(argc, argv, 4,
                  [argv] { return Run(argv[1], argv[2], argv[3]); });
}
