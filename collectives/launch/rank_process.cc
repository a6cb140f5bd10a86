#include "collectives/launch/rank_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/cores.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/subprocess.h"

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

// The child's side; returns only if the command could not be started.
void BecomeRank(const RankCommand& command, char* const* argv,
                char* const* environment, pid_t parent, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // It died before the line above.
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
      dup2(command.out_fd, STDOUT_FILENO) < 0 ||
      dup2(command.err_fd, STDERR_FILENO) < 0) {
    return;
  }
  if (error_fd > 3) close_range(3, error_fd - 1, 0);
  close_range(error_fd + 1, UINT_MAX, 0);
  if (!command.cpus.empty() && !SetAffinity(command.cpus)) return;
  pthread_sigmask(SIG_SETMASK, &command.signal_mask, nullptr);
  execvpe(argv[0], argv, environment);
}

}  // namespace

ProcessScope::ProcessScope() {
  sigemptyset(&passed_on_);
  for (const int signal :
       {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
    struct sigaction action;
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&passed_on_, signal);
  }
  sigset_t blocked = passed_on_;
  sigaddset(&blocked, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &blocked, &old_mask_);

  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &default_action, &old_child_action_);
  sigaction(SIGPIPE, nullptr, &old_pipe_action_);

  prctl(PR_GET_CHILD_SUBREAPER, &old_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ProcessScope::~ProcessScope() {
  prctl(PR_SET_CHILD_SUBREAPER, old_subreaper_);
  sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  sigaction(SIGCHLD, &old_child_action_, nullptr);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void ProcessScope::IgnoreBrokenPipes() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

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

RankStart StartRank(const RankCommand& command) {
  const std::vector<char*> argv = ExecPointers(command.argv);
  const std::vector<char*> environment = ExecPointers(command.environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {.error = errno};
  OwnedFd error_reader(ends[0]);
  OwnedFd error_writer(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return {.error = errno};
  if (pid == 0) {
    BecomeRank(command, argv.data(), environment.data(), parent,
               error_writer.get());
    const int error = errno;
    if (write(error_writer.get(), &error, sizeof(error)) < 0) _exit(1);
    _exit(127);
  }
  error_writer.Close();
  int error = 0;
  ssize_t size = 0;
  do {
    size = read(error_reader.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(error)) return {.pid = pid};
  waitpid(pid, nullptr, 0);
  return {.error = error};
}

}  // namespace lockstep
