// Walks /proc for children, and kills them generation by generation.
#include "collectives/launch/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

// The parent of `pid`; -1 if the process is gone.
pid_t ReadParent(pid_t pid) {
  const OwnedFd file(
      open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return -1;
  char text[512];
  const ssize_t size = read(file.get(), text, sizeof(text) - 1);
  if (size <= 0) return -1;
  text[size] = '\0';
  // "pid (name) state parent ...", where the name may hold any characters.
  const size_t name_end = absl::string_view(text, size).rfind(')');
  if (name_end == absl::string_view::npos) return -1;
  char state;
  int parent;
  if (std::sscanf(text + name_end + 1, " %c %d", &state, &parent) != 2) {
    return -1;
  }
  return parent;
}

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
    if (ReadParent(pid) == parent) children.push_back(pid);
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
