// The rules that turn wait statuses into one exit status and one line.
#include "collectives/launch/launch_summary.h"

#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "collectives/launch/supervisor.h"

namespace lockstep {
namespace {

constexpr int kTimedOutStatus = 124;  // As the command timeout exits.

std::string FormatEnd(const RankOutcome& outcome) {
  if (WIFSIGNALED(outcome.wait_status)) {
    return absl::StrCat("was killed by signal ",
                        FormatSignal(WTERMSIG(outcome.wait_status)));
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(outcome.wait_status));
}

// Returns "ranks 0, 2 were stopped", with the singular or the plural verb.
std::string FormatRanksWithVerb(const std::vector<int>& ranks, const char* one,
                                const char* several) {
  return absl::StrCat(FormatRanks(ranks), " ",
                      ranks.size() == 1 ? one : several);
}

// Returns the parts of the report, the most important first; empty if every
// rank exited with 0.
std::vector<std::string> Findings(const LaunchSummary& summary) {
  std::vector<std::string> parts;
  if (ExitStatus(summary) == 0) return parts;
  const std::optional<RankOutcome> first = FirstFailure(summary);
  std::vector<int> failed_later, stopped;
  int ended_well = 0;
  for (const RankOutcome& outcome : summary.ranks) {
    if (outcome.stopped) {
      stopped.push_back(outcome.rank);
    } else if (outcome.wait_status == 0) {
      ++ended_well;
    } else if (outcome.rank != first->rank) {
      failed_later.push_back(outcome.rank);
    }
  }
  if (first.has_value()) {
    parts.push_back(absl::StrCat("rank ", first->rank, " (pid ", first->pid,
                                 ") ", FormatEnd(*first), " after ",
                                 FormatElapsed(first->after)));
  }
  if (summary.timed_out.has_value()) {
    parts.push_back(absl::StrCat(
        "the time limit of ", FormatElapsed(*summary.timed_out), " was over"));
  }
  if (summary.received_signal != 0) {
    parts.push_back(absl::StrCat("the launcher received signal ",
                                 FormatSignal(summary.received_signal)));
  }
  if (!failed_later.empty()) {
    parts.push_back(FormatRanksWithVerb(failed_later, "failed after it",
                                        "failed after it"));
  }
  if (!stopped.empty()) {
    parts.push_back(
        FormatRanksWithVerb(stopped, "was stopped", "were stopped"));
  }
  if (ended_well > 0) {
    parts.push_back(absl::StrCat(
        ended_well, ended_well == 1 ? " rank" : " ranks", " ended well"));
  }
  return parts;
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
  if (summary.timed_out.has_value()) return kTimedOutStatus;
  const bool all_succeeded = std::all_of(
      summary.ranks.begin(), summary.ranks.end(),
      [](const RankOutcome& outcome) { return outcome.wait_status == 0; });
  return all_succeeded ? 0 : 128 + summary.received_signal;
}

std::string DescribeFailure(const LaunchSummary& summary) {
  return absl::StrJoin(Findings(summary), "; ");
}

std::string FormatSummary(const LaunchSummary& summary,
                          const std::string& elsewhere) {
  constexpr size_t kColumns = 100;
  constexpr char kPrefix[] = "lockstep: ";
  std::string text;
  std::string line;
  std::vector<std::string> parts = Findings(summary);
  if (!elsewhere.empty()) parts.insert(parts.begin(), elsewhere);
  for (const std::string& part : parts) {
    // Two for "; " before the part, one for the full stop or semicolon after
    // it.
    if (!line.empty() && line.size() + part.size() + 3 > kColumns) {
      absl::StrAppend(&text, line, ";\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? kPrefix : "; ", part);
  }
  return line.empty() ? "" : absl::StrCat(text, line, ".");
}

std::string FormatRanks(std::vector<int> ranks) {
  constexpr size_t kMostItems = 6;
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> items;
  size_t next = 0;
  while (next < ranks.size() && items.size() < kMostItems) {
    size_t end = next + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - next < 3) {
      items.push_back(absl::StrCat(ranks[next++]));
    } else {
      items.push_back(absl::StrCat(ranks[next], "-", ranks[end - 1]));
      next = end;
    }
  }
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(items, ", "));
  if (next < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - next, " more");
  }
  return text;
}

std::string FormatElapsed(absl::Duration time) {
  if (time < absl::Minutes(2)) {
    return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(time));
  }
  return absl::FormatDuration(absl::Trunc(time, absl::Seconds(1)));
}

std::string FormatSignal(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat(signal);
  return absl::StrCat(signal, " (SIG", name, ")");
}

}  // namespace lockstep
