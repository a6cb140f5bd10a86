// How the ranks of a run ended, as one exit status and one line.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/launch/supervisor.h"

namespace lockstep {

struct LaunchSummary {
  std::vector<RankOutcome> ranks = {};  // In the order in which they ended.
  // The first signal to the launcher that asks a program to end (SIGHUP,
  // SIGINT, SIGQUIT, SIGTERM); 0 if there was none.
  int received_signal = 0;
  // LaunchOptions::timeout, if it passed before the ranks had ended.
  std::optional<absl::Duration> timed_out = std::nullopt;
  // By rank, the output that LaunchOptions::keep_output_bytes asks for; else
  // empty.
  std::vector<std::string> kept_output = {};
  // Why a rank's log is incomplete; "" if nothing was lost.
  std::string log_error = {};
};

// Returns the first rank that failed by itself: it was not stopped, and its
// exit status is not 0.
std::optional<RankOutcome> FirstFailure(const LaunchSummary& summary);

// Returns the exit status for the launcher. 0: every rank exited with 0.
// Otherwise: the exit status of the first failure, or 128 + signal if a signal
// killed that rank. If no rank failed by itself: 124 if the timeout passed, or
// 128 + the signal that told the launcher to end.
int ExitStatus(const LaunchSummary& summary);

// Returns one line, without a line end, that names the first rank to fail, how,
// and when (since the start of the run). The line also says how the other ranks
// ended. Returns "" if the exit status is 0. For example:
//
//   rank 1 (pid 4242) was killed by signal 9 (SIGKILL) after 12.3 s; rank 0
//   failed after it; ranks 2-4, 6 were stopped; 2 ranks ended well
std::string DescribeFailure(const LaunchSummary& summary);

// Returns the same text for printing: "lockstep: ....", broken into lines of at
// most 100 characters that all begin with "lockstep: ", without the last line
// end. elsewhere: the failure of another node, if that failure was the first of
// the run. The text then begins with it and continues with this node.
std::string FormatSummary(const LaunchSummary& summary,
                          const std::string& elsewhere = {});

// Returns "rank 3", or "ranks 0, 2-5, 9": ascending, with three or more
// consecutive numbers shortened. After six numbers or ranges, the text says how
// many more there are. ranks: at least one.
std::string FormatRanks(std::vector<int> ranks);

// Returns "12.3 s"; from two minutes on absl's format, rounded to seconds:
// "2h13m5s".
std::string FormatElapsed(absl::Duration time);

// Returns "9 (SIGKILL)".
std::string FormatSignal(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCH_SUMMARY_H_
