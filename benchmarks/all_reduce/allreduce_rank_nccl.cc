// A rank on a GPU, for the command `allreduce`: allreduce_rank_nccl LISTENER
// KIND ALGORITHM, where KIND is "nccl", our communicator, or "NCCL", its own
// calls.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/nccl_rank.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep::benchmarks {
namespace {

absl::Status Run(const std::string& listener, const Team& team) {
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

int Main(int argc, char** argv) {
  const std::optional<Algorithm> algorithm =
      argc == 4 ? ParseAlgorithm(argv[3]) : std::nullopt;
  if (!algorithm.has_value()) {
    std::fprintf(stderr, "allreduce_rank_nccl is for allreduce to run\n");
    return 2;
  }
  const bool plain = argv[2] == std::string(Name(TeamKind::kPlainNccl));
  const TeamKind kind = plain ? TeamKind::kPlainNccl : TeamKind::kNccl;
  const absl::Status status = Run(argv[1], {kind, *algorithm});
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::benchmarks::Main(argc, argv);
}
