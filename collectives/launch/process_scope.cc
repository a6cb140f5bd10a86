// Saves, changes and restores signal handling and the subreaper setting.
#include "collectives/launch/process_scope.h"

#include <signal.h>
#include <sys/prctl.h>

#include <initializer_list>

namespace lockstep {

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

}  // namespace lockstep
