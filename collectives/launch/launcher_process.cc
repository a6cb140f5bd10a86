// A walk up the tree of processes, through /proc.
#include "collectives/launch/launcher_process.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "collectives/process_stat.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {
namespace {

// The variables that the process started with; none if it is another user's.
std::set<std::string> EnvironmentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return absl::StrSplit(text, '\0', absl::SkipEmpty());
}

}  // namespace

ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables) {
  std::vector<std::string> mine;
  for (const absl::string_view name : variables) {
    const char* value = std::getenv(std::string(name).c_str());
    if (value != nullptr) mine.push_back(absl::StrCat(name, "=", value));
  }
  pid_t pid = getppid();
  while (true) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.has_value()) return {.pid = pid};
    const std::set<std::string> environment = EnvironmentOf(pid);
    const bool is_of_this_rank =
        !mine.empty() &&
        std::all_of(mine.begin(), mine.end(), [&](const std::string& entry) {
          return environment.contains(entry);
        });
    if (!is_of_this_rank || stat->parent == 0) {
      return {.pid = pid, .start_ticks = stat->start_ticks};
    }
    pid = stat->parent;
  }
}

}  // namespace lockstep
