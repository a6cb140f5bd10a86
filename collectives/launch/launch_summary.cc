// The rules that turn wait statuses into one exit status and one line.
#include "collectives/launch/launch_summary.h"

#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {
namespace {

std::string FormatEnd(const RankOutcome& outcome) {
  if (WIFSIGNALED(outcome.wait_status)) {
    return absl::StrCat("was killed by signal ",
                        FormatSignal(WTERMSIG(outcome.wait_status)));
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(outcome.wait_status));
}

std::string FormatFailure(const RankOutcome& outcome) {
  return absl::StrCat("rank ", outcome.rank, " (pid ", outcome.pid, ") ",
                      FormatEnd(outcome));
}

// "rank 2 was stopped" or "ranks 0, 2 were stopped".
std::string FormatStopped(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "),
                      ranks.size() == 1 ? " was stopped" : " were stopped");
}

}  // namespace

std::optional<RankOutcome> FirstFailure(const LaunchSummary& summary) {
  for (const RankOutcome& outcome : summary.ranks) {
    if (!outcome.stopped && outcome.wait_status != 0) return outcome;
  }
  return std::nullopt;
}

int ExitStatus(const LaunchSummary& summary) {
  if (const std::optional<RankOutcome> first = FirstFailure(summary)) {
    return WIFSIGNALED(first->wait_status) ? 128 + WTERMSIG(first->wait_status)
                                           : WEXITSTATUS(first->wait_status);
  }
  const bool all_succeeded = std::all_of(
      summary.ranks.begin(), summary.ranks.end(),
      [](const RankOutcome& outcome) { return outcome.wait_status == 0; });
  return all_succeeded ? 0 : 128 + summary.received_signal;
}

std::string FormatSummary(const LaunchSummary& summary) {
  if (ExitStatus(summary) == 0) return "";
  std::vector<std::string> parts;
  std::vector<int> stopped;
  for (const RankOutcome& outcome : summary.ranks) {
    if (outcome.stopped) {
      stopped.push_back(outcome.rank);
    } else if (outcome.wait_status != 0) {
      parts.push_back(FormatFailure(outcome));
    }
  }
  if (summary.received_signal != 0) {
    parts.push_back(absl::StrCat("the launcher received signal ",
                                 FormatSignal(summary.received_signal)));
  }
  std::sort(stopped.begin(), stopped.end());
  if (!stopped.empty()) parts.push_back(FormatStopped(stopped));
  return absl::StrCat("lockstep: ", absl::StrJoin(parts, "; "), ".");
}

std::string FormatSignal(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat(signal);
  return absl::StrCat(signal, " (SIG", name, ")");
}

}  // namespace lockstep
