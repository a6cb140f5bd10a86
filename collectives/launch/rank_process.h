// The process of one rank: how it is started, how it and its descendants are
// ended, and what the process that does both must set up for itself.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// While it lives: the signals that a launcher passes on, and SIGCHLD, are
// blocked, to be read from a signalfd; SIGCHLD is not ignored; orphaned
// descendants become children of this process (PR_SET_CHILD_SUBREAPER). All is
// put back at the end. For single-threaded processes.
class ProcessScope {
 public:
  ProcessScope();
  ProcessScope(const ProcessScope&) = delete;
  ProcessScope& operator=(const ProcessScope&) = delete;
  ~ProcessScope();

  // SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, without those that the
  // process ignores: a run under nohup must outlive its terminal.
  const sigset_t& passed_on() const { return passed_on_; }

  // The signal mask from before.
  const sigset_t& old_mask() const { return old_mask_; }

  // Turns SIGPIPE into an error of write(). Not from the start, since children
  // would inherit it.
  void IgnoreBrokenPipes();

 private:
  sigset_t passed_on_ = {};
  sigset_t old_mask_ = {};
  struct sigaction old_child_action_ = {};
  struct sigaction old_pipe_action_ = {};
  int old_subreaper_ = 0;
};

// The processes, zombies included, whose parent is `parent`, in no order. Reads
// the state of every process of the host from /proc, so takes about 10
// microseconds for each. Errors: the file system's if there is no /proc.
absl::StatusOr<std::vector<pid_t>> ListChildren(pid_t parent);

// Kills, with SIGKILL, and reaps every child of this process except those in
// `spared`, until there is none. In a child subreaper (PR_SET_CHILD_SUBREAPER)
// that ends all descendants, in whatever group or session: the children of a
// killed child become children of this process, and are found in turn. Only own
// children are ever signalled, and their numbers cannot be reused before they
// are reaped, so no stranger is hit.
//
// SIGCHLD must be blocked and not ignored. on_exit is called for every child
// that is reaped, with its wait status.
// Errors: kDeadlineExceeded names the processes that have survived SIGKILL for
// `timeout` (the kernel cannot end a process that waits for a device);
// the file system's if there is no /proc.
absl::Status KillChildren(
    std::span<const pid_t> spared, absl::Duration timeout,
    absl::FunctionRef<void(pid_t pid, int wait_status)> on_exit);

struct RankCommand {
  std::vector<std::string> argv;         // As execvp() takes it; not empty.
  std::vector<std::string> environment;  // "NAME=value", all of them.
  int out_fd = 1;                        // Becomes standard output; borrowed.
  int err_fd = 2;                        // Becomes standard error; borrowed.
  sigset_t signal_mask = {};             // What the command starts with.
  std::vector<int> cpus = {};            // To be bound to; empty: not bound.
};

struct RankStart {
  pid_t pid = 0;  // Of the running command; 0 if it was not started.
  int error = 0;  // Else the errno that says why.
};

// Runs the command as a child of this process, in a process group of its own,
// reading /dev/null, with no other descriptor than 0, 1 and 2. It is killed
// when this process dies. Returns when the command is running, or could not be
// started. For single-threaded processes.
RankStart StartRank(const RankCommand& command);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_PROCESS_H_
