// A rank for tests of launchers. `rank sum` joins the group twice and prints
// the sum of all ranks' numbers, counted from 1. `rank launcher` prints the
// identity of the process that started this rank; RANK and RUN identify the
// rank.
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rendezvous_location.h"

namespace lockstep {
namespace {

absl::StatusOr<std::string> Sum() {
  int64_t sum = 0;
  for (int time = 0; time < 2; ++time) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const LocalRanks ranks,
        CreateGroup("processes", 0, {.timeout = absl::Minutes(1)}));
    Communicator& rank = *ranks.front();
    sum = rank.rank() + 1;
    LOCKSTEP_RETURN_IF_ERROR(rank.AllReduce(std::span<int64_t>(&sum, 1)));
  }
  return absl::StrCat("sum ", sum, "\n");
}

std::string Launcher() {
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  const ProcessIdentity launcher = FindLauncherProcess(names);
  return absl::StrCat(launcher.pid, " ", launcher.start_ticks, "\n");
}

absl::StatusOr<std::string> Run(absl::string_view what) {
  if (what == "sum") return Sum();
  if (what == "launcher") return Launcher();
  return absl::InvalidArgumentError("must be sum or launcher");
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
  // One write, so that lines of ranks do not mix.
  std::fwrite(text->data(), 1, text->size(), stdout);
  return 0;
}
