// How a launched run ended, as data and as text.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The end of one rank.
struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  int wait_status = 0;   // As waitpid() gives it.
  bool stopped = false;  // The launcher had told it to stop before it ended.
};

struct LaunchSummary {
  std::vector<RankOutcome> ranks;  // In the order in which they ended.
  // The first signal to the launcher that asks a program to end (SIGHUP,
  // SIGINT, SIGQUIT, SIGTERM); 0 if there was none.
  int received_signal = 0;
};

// The first rank that failed by itself: not stopped, and not exit status 0.
std::optional<RankOutcome> FirstFailure(const LaunchSummary& summary);

// What the launcher should exit with: 0 if every rank did; else the exit status
// of the first failure, or 128 + signal for one killed by a signal; else, if
// ranks only failed because the launcher was told to end, 128 + that signal.
int ExitStatus(const LaunchSummary& summary);

// One line, without a line end, that names the first rank to fail, how, and
// what became of the others; "" if every rank exited with 0. For example:
//
//   lockstep: rank 1 (pid 4242) was killed by signal 9 (SIGKILL); rank 0 was
//   stopped.
std::string FormatSummary(const LaunchSummary& summary);

// "9 (SIGKILL)".
std::string FormatSignal(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
