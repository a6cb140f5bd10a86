// A rank for the test of RankTeam: rank_team_test_rank LISTENER HOW.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep::benchmarks {
namespace {

absl::StatusOr<TimedCalls> Take(const std::string& how, int rank,
                                int64_t request) {
  if (request == 13 && rank == 1) {
    if (how == "dies") raise(SIGKILL);
    if (how == "fails") return absl::AbortedError("unlucky");
    if (how == "hangs") pause();
  }
  return TimedCalls{{static_cast<double>(rank + 1)}, rank};
}

int Main(const std::string& listener, const std::string& how) {
  const absl::StatusOr<std::optional<RankEnvironment>> environment =
      ReadRankEnvironment();
  const int rank = (*environment)->rank;
  if (how == "silent") pause();
  if (how == "mute" && rank == 1) {
    std::fprintf(stderr, "first line\nrank 1 is sorry\n");
    return 3;
  }
  RankHello hello = {rank, (*environment)->world_size};
  if (how == "singletons") hello = {0, 1};
  if (how == "twins") hello.rank = 0;
  const absl::Status status = ServeTurns<int64_t>(
      listener, hello,
      [&](int64_t request) { return Take(how, rank, request); });
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return argc == 3 ? lockstep::benchmarks::Main(argv[1], argv[2]) : 2;
}
