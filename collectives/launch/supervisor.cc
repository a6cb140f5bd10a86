// The supervisor's loop: a small state machine driven by signals, by the
// channel to the launcher, and by one deadline.
#include "collectives/launch/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/subprocess.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

struct RankStart {
  pid_t pid = 0;  // The running command; 0 if it was not started.
  int error = 0;  // If it was not started, the errno.
};

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

// Waits until a child ends, or 5 ms have passed.
void AwaitChild() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec moment = {.tv_sec = 0, .tv_nsec = 5'000'000};
  sigtimedwait(&child, nullptr, &moment);
}

// Runs in the child; returns only if the command could not be started.
void BecomeRank(const SupervisorPlan& plan, size_t rank, char* const* argv,
                char* const* environment, pid_t parent, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // The parent died before the prctl().
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0) return;
  if (!plan.outputs.empty() &&
      (dup2(plan.outputs[rank].out.get(), STDOUT_FILENO) < 0 ||
       dup2(plan.outputs[rank].err.get(), STDERR_FILENO) < 0)) {
    return;
  }
  if (error_fd > 3) close_range(3, error_fd - 1, 0);
  close_range(error_fd + 1, UINT_MAX, 0);
  const bool binds = !plan.cpus.empty() && !plan.cpus[rank].empty();
  if (binds && !SetAffinity(plan.cpus[rank])) return;
  pthread_sigmask(SIG_SETMASK, &plan.rank_mask, nullptr);
  execvpe(argv[0], argv, environment);
}

// Runs the command of `rank` as a child of this process, in a process group of
// its own. The child reads /dev/null, has no descriptors other than 0, 1 and 2,
// and is killed when this process dies. Returns when the command runs or could
// not be started.
RankStart StartRank(const SupervisorPlan& plan, size_t rank) {
  const std::vector<char*> argv = ExecPointers(plan.argv);
  const std::vector<char*> environment = ExecPointers(plan.environments[rank]);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {.error = errno};
  OwnedFd error_reader(ends[0]);
  OwnedFd error_writer(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return {.error = errno};
  if (pid == 0) {
    BecomeRank(plan, rank, argv.data(), environment.data(), parent,
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

class Supervisor {
 public:
  explicit Supervisor(SupervisorPlan plan) : plan_(std::move(plan)) {}

  void Run() {
    EnterPhase(Phase::kRun, plan_.timeout);
    if (StartRanks()) {
      while (live_ranks_ > 0 && phase_ != Phase::kKill) WaitForNews();
    }
    phase_ = Phase::kKill;
    const absl::Status ended = KillChildren(
        {}, kSurvivalLimit,
        [this](pid_t pid, int wait_status) { ChildEnded(pid, wait_status); });
    if (!ended.ok()) Send({.kind = SupervisorEvent::kSurvivors});
  }

 private:
  // The phases follow one another, and some may be skipped.
  enum class Phase {
    kRun,        // Until the timeout.
    kReport,     // A rank has failed; others may report it.
    kTerminate,  // All ranks were asked to end.
    kKill,
  };
  struct Rank {
    pid_t pid = 0;
    bool alive = true;
  };

  bool StartRanks() {
    sigset_t watched = plan_.passed_on;
    sigaddset(&watched, SIGCHLD);
    signals_ = OwnedFd(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
    const int world_size = static_cast<int>(plan_.environments.size());
    for (int rank = 0; rank < world_size; ++rank) {
      const RankStart start = StartRank(plan_, static_cast<size_t>(rank));
      if (start.error != 0) {
        Send({.kind = SupervisorEvent::kRankNotStarted,
              .ended = {.rank = rank},
              .value = start.error});
        return false;
      }
      ranks_.push_back({.pid = start.pid});
      ++live_ranks_;
    }
    // From here on only the ranks hold these descriptors, so the pipes end when
    // the ranks do.
    plan_.outputs.clear();
    return signals_.open();
  }

  void WaitForNews() {
    pollfd fds[] = {{signals_.get(), POLLIN, 0},
                    {plan_.channel.get(), POLLIN, 0}};
    if (poll(fds, 2, PollMilliseconds(deadline_)) > 0) {
      if (fds[0].revents != 0) ReadSignals();
      if (fds[1].revents != 0) ReadChannel();
    }
    HandleDeadline();
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGCHLD) {
        // ssi_pid is the first of the children that ended since the last read.
        // One signal stands for all of them, so the order of the other children
        // is lost.
        ReapAll(static_cast<pid_t>(info.ssi_pid));
      } else {
        PassOn(static_cast<int>(info.ssi_signo));
      }
    }
  }

  void ReadChannel() {
    unsigned char signal = 0;
    const ssize_t size =
        recv(plan_.channel.get(), &signal, sizeof(signal), MSG_DONTWAIT);
    if (size == sizeof(signal) && signal == kFailedElsewhere) {
      if (phase_ == Phase::kRun) EnterPhase(Phase::kReport, plan_.grace.report);
    } else if (size == sizeof(signal)) {
      PassOn(signal);
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      EnterPhase(Phase::kKill, absl::ZeroDuration());  // The launcher is dead.
    }
  }

  void PassOn(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.alive) SendSignalToGroup(rank.pid, signal);
    }
    if (!IsTerminationSignal(signal)) return;
    if (!told_signal_) {
      Send({.kind = SupervisorEvent::kSignalReceived, .value = signal});
      told_signal_ = true;
    }
    if (signal == SIGINT && interrupted_) {
      EnterPhase(Phase::kKill, absl::ZeroDuration());
    } else if (phase_ == Phase::kRun) {
      EnterPhase(Phase::kTerminate, plan_.grace.after_signal);
    } else if (phase_ == Phase::kReport) {
      EnterPhase(Phase::kTerminate, plan_.grace.terminate);
    }
    interrupted_ |= signal == SIGINT;
  }

  void ReapAll(pid_t first) {
    int wait_status = 0;
    if (first > 0 && waitpid(first, &wait_status, WNOHANG) == first) {
      ChildEnded(first, wait_status);
    }
    while (true) {
      const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
      if (pid <= 0) return;
      ChildEnded(pid, wait_status);
    }
  }

  void ChildEnded(pid_t pid, int wait_status) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (!rank.alive || rank.pid != pid) continue;
      rank.alive = false;
      --live_ranks_;
      Send({.kind = SupervisorEvent::kRankEnded,
            .ended = {.rank = static_cast<int>(i),
                      .pid = pid,
                      .wait_status = wait_status,
                      .stopped = phase_ >= Phase::kTerminate,
                      .after = absl::FromChrono(Clock::now() - start_)}});
      if (wait_status != 0 && phase_ == Phase::kRun) {
        EnterPhase(Phase::kReport, plan_.grace.report);
      }
      return;
    }
  }

  void EnterPhase(Phase phase, absl::Duration length) {
    phase_ = phase;
    deadline_ = Deadline(length);
  }

  void HandleDeadline() {
    if (phase_ == Phase::kKill || live_ranks_ == 0) return;
    if (!deadline_.passed()) return;
    if (phase_ == Phase::kTerminate) {
      EnterPhase(Phase::kKill, absl::ZeroDuration());
      return;
    }
    if (phase_ == Phase::kRun) Send({.kind = SupervisorEvent::kTimedOut});
    for (const Rank& rank : ranks_) {
      if (rank.alive) SendSignalToGroup(rank.pid, SIGTERM);
    }
    EnterPhase(Phase::kTerminate, plan_.grace.terminate);
  }

  // Sends an event. Errors are ignored: a dead launcher does not need it.
  void Send(const SupervisorEvent& event) {
    send(plan_.channel.get(), &event, sizeof(event), MSG_NOSIGNAL);
  }

  SupervisorPlan plan_;
  OwnedFd signals_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Rank> ranks_;
  int live_ranks_ = 0;
  Phase phase_ = Phase::kRun;
  Deadline deadline_{absl::ZeroDuration()};  // For every phase but kKill.
  bool interrupted_ = false;                 // Whether SIGINT was received.
  bool told_signal_ = false;  // Whether kSignalReceived was sent.
};

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
  const Deadline deadline(timeout);
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<pid_t> children,
                              ListChildren(getpid()));
    std::erase_if(children, [&](pid_t pid) {
      return std::find(spared.begin(), spared.end(), pid) != spared.end();
    });
    if (children.empty()) return absl::OkStatus();
    if (deadline.passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "cannot end process ", absl::StrJoin(children, ", "),
          ": still there ", absl::FormatDuration(timeout), " after SIGKILL"));
    }
    bool any_ended = false;
    for (const pid_t pid : children) {
      SendSignal(pid, SIGKILL);
      int wait_status = 0;
      if (waitpid(pid, &wait_status, WNOHANG) == pid) {
        on_exit(pid, wait_status);
        any_ended = true;
      }
    }
    if (!any_ended) AwaitChild();
  }
}

bool IsTerminationSignal(int signal) {
  return signal == SIGHUP || signal == SIGINT || signal == SIGQUIT ||
         signal == SIGTERM;
}

void RunSupervisor(SupervisorPlan plan) {
  setsid();  // A SIGKILL to the launcher's process group must not hit this.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "lockstep-super");
  Supervisor(std::move(plan)).Run();
}

}  // namespace lockstep
