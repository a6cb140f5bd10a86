// Walks /proc for children, and kills them generation by generation.
#include "collectives/launch/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/process_stat.h"

namespace lockstep {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

// Waits until a child ends, or a moment has passed.
void AwaitChild() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec moment = {.tv_sec = 0, .tv_nsec = 5'000'000};
  sigtimedwait(&child, nullptr, &moment);
}

}  // namespace

absl::StatusOr<std::vector<pid_t>> ListChildren(pid_t parent) {
  const std::unique_ptr<DIR, CloseDirectory> proc(opendir("/proc"));
  if (proc == nullptr) {
    return absl::ErrnoToStatus(errno, "cannot list the processes in /proc");
  }
  std::vector<pid_t> children;
  while (const dirent* entry = readdir(proc.get())) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.has_value() && stat->parent == parent) children.push_back(pid);
  }
  return children;
}

absl::Status KillChildren(
    std::span<const pid_t> spared, absl::Duration timeout,
    absl::FunctionRef<void(pid_t pid, int wait_status)> on_exit) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline =
      Clock::now() + absl::ToChronoNanoseconds(timeout);
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<pid_t> children,
                              ListChildren(getpid()));
    std::erase_if(children, [&](pid_t pid) {
      return std::find(spared.begin(), spared.end(), pid) != spared.end();
    });
    if (children.empty()) return absl::OkStatus();
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "cannot end process ", absl::StrJoin(children, ", "),
          ": still there ", absl::FormatDuration(timeout), " after SIGKILL"));
    }
    bool any_ended = false;
    for (const pid_t pid : children) {
      kill(pid, SIGKILL);
      int wait_status = 0;
      if (waitpid(pid, &wait_status, WNOHANG) == pid) {
        on_exit(pid, wait_status);
        any_ended = true;
      }
    }
    if (!any_ended) AwaitChild();
  }
}

}  // namespace lockstep
