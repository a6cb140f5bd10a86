// How a launched run ended, as data and as text.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace lockstep {

// The end of one rank.
struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  int wait_status = 0;   // As waitpid() gives it.
  bool stopped = false;  // The launcher had told it to stop before it ended.
  absl::Duration after = absl::ZeroDuration();  // Since the ranks started.
};

struct LaunchSummary {
  std::vector<RankOutcome> ranks = {};  // In the order in which they ended.
  // The first signal to the launcher that asks a program to end (SIGHUP,
  // SIGINT, SIGQUIT, SIGTERM); 0 if there was none.
  int received_signal = 0;
  // LaunchOptions::timeout, if that was over before the ranks had ended.
  std::optional<absl::Duration> timed_out = std::nullopt;
  // By rank, as LaunchOptions::keep_output_bytes asks for; else empty.
  std::vector<std::string> kept_output = {};
  // Why a rank's log is not complete; "" if nothing was lost.
  std::string log_error = {};
};

// The first rank that failed by itself: not stopped, and not exit status 0.
std::optional<RankOutcome> FirstFailure(const LaunchSummary& summary);

// What the launcher should exit with: 0 if every rank did; else the exit status
// of the first failure, or 128 + signal for one killed by a signal; else 124 if
// their time was up; else, if ranks only failed because the launcher was told
// to end, 128 + that signal.
int ExitStatus(const LaunchSummary& summary);

// One line, without a line end, that names the first rank to fail, how, when
// (since the start of the run), and what became of the others; "" if the exit
// status is 0. For example:
//
//   rank 1 (pid 4242) was killed by signal 9 (SIGKILL) after 12.3 s; rank 0
//   failed after it; ranks 2-4, 6 were stopped; 2 ranks ended well
std::string DescribeFailure(const LaunchSummary& summary);

// The same to print: "lockstep: ....", broken into lines of at most 100
// characters, each with that in front; without the last line end.
std::string FormatSummary(const LaunchSummary& summary);

// "rank 3", or "ranks 0, 2-5, 9": in ascending order, runs of three or more
// shortened; and past six numbers and runs, how many more there are.
// ranks: at least one.
std::string FormatRanks(std::vector<int> ranks);

// "12.3 s"; from two minutes on as absl has it, to the second: "2h13m5s".
std::string FormatElapsed(absl::Duration time);

// "9 (SIGKILL)".
std::string FormatSignal(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
