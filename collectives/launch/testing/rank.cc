// A rank for tests of launchers: `rank sum` joins the group and prints the sum
// of all ranks' numbers from 1 on, `rank meet` only meets the others and prints
// what each of them said, and `rank launcher` prints the identity of the
// process that started this rank, which RANK and RUN mark.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

absl::StatusOr<std::string> Sum() {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const LocalRanks ranks,
      CreateGroup("processes", 0, {.timeout = absl::Minutes(1)}));
  Communicator& rank = *ranks.front();
  int64_t sum = rank.rank() + 1;
  LOCKSTEP_RETURN_IF_ERROR(rank.AllReduce(std::span<int64_t>(&sum, 1)));
  return absl::StrCat("sum ", sum, "\n");
}

absl::StatusOr<std::string> Meet() {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenLaunchedRendezvous(environment, absl::Minutes(1)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      rendezvous->Exchange(absl::StrCat("r", environment.rank)));
  return absl::StrCat("met ", absl::StrJoin(said, ","), "\n");
}

std::string Launcher() {
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  const ProcessIdentity launcher = FindLauncherProcess(names);
  return absl::StrCat(launcher.pid, " ", launcher.start_ticks, "\n");
}

absl::StatusOr<std::string> Run(absl::string_view what) {
  if (what == "sum") return Sum();
  if (what == "meet") return Meet();
  if (what == "launcher") return Launcher();
  return absl::InvalidArgumentError("must be sum, meet or launcher");
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const absl::StatusOr<std::string> text =
      lockstep::Run(argc == 2 ? argv[1] : "");
  if (!text.ok()) {
    std::fprintf(stderr, "rank: %s\n",
                 std::string(text.status().message()).c_str());
    return 1;
  }
  // At once, so that lines of ranks do not mix.
  std::fwrite(text->data(), 1, text->size(), stdout);
  return 0;
}
