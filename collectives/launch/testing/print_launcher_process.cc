// Prints the identity of the process that started this rank, which RANK and RUN
// mark.
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/process.h"
#include "collectives/launch/launched_group.h"

int main() {
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  const lockstep::ProcessIdentity launcher =
      lockstep::FindLauncherProcess(names);
  std::printf("%" PRId32 " %" PRIu64 "\n", launcher.pid, launcher.start_ticks);
  return 0;
}
