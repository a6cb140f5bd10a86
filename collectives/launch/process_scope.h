// Settings of the calling process that hold for the time of a launch.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_SCOPE_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_SCOPE_H_

#include <signal.h>

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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_SCOPE_H_
