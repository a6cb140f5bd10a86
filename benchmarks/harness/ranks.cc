#include "benchmarks/harness/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/launch/rank_placement.h"

namespace lockstep::benchmarks {

const char* Name(RankKind kind) {
  return kind == RankKind::kProcesses ? "processes" : "threads";
}

absl::Status RunAsRanks(
    RankKind kind, int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& body) {
  if (kind == RankKind::kThreads) {
    return RunOnThreads(world_size, options, body);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a rank needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                            JoinLaunchedGroup(*environment, options));
  return body(*group);
}

// A child process that launches, and a connection to every rank.
namespace {

constexpr int64_t kLongestQuote = 4096;  // Of the end of a log.

// The whole life of the process that launches a team.
[[noreturn]] void RunLauncher(const TeamCommand& command, int log,
                              pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  // Held open here, this process's connections would not end with the driver's.
  close_range(STDERR_FILENO + 1, ~0U, 0);
  LaunchOptions options = {.nproc = command.nproc,
                           .argv = command.argv,
                           .environment = command.environment,
                           .prefix_output = false};
  PlacementOptions placement = {.bind_cores = command.bind_cores};
  auto placements = PlaceRanks(command.nproc, placement);
  if (placements.ok()) options.placements = *std::move(placements);
  const absl::StatusOr<LaunchSummary> summary = lockstep::Launch(options);
  const std::string failure = summary.ok()
                                  ? DescribeFailure(*summary)
                                  : std::string(summary.status().message());
  // A rank's own last words say more than how it ended.
  struct stat info = {};
  if (!failure.empty() && fstat(STDERR_FILENO, &info) == 0 &&
      info.st_size == 0) {
    std::fprintf(stderr, "%s\n", failure.c_str());
  }
  _exit(summary.ok() ? ExitStatus(*summary) : 1);
}

// Of the errors of several ranks, the one that explains the others: not that a
// rank lost another, or stopped because of an earlier error.
void KeepCause(absl::Status& cause, const absl::Status& status) {
  const auto follows = [](const absl::Status& error) {
    return absl::IsUnavailable(error) || absl::IsFailedPrecondition(error);
  };
  if (cause.ok() || (follows(cause) && !status.ok() && !follows(status))) {
    cause = status;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankTeam>> RankTeam::Start(
    const std::function<TeamCommand(const std::string& listener)>& command) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnListener listener, TurnListener::Create());
  OwnedFd log(memfd_create("team-output", MFD_CLOEXEC));
  if (!log.open()) return absl::ErrnoToStatus(errno, "memfd_create");
  TeamCommand what = command(listener.name());
  std::unique_ptr<RankTeam> team(
      new RankTeam(std::move(what), std::move(listener), std::move(log)));
  LOCKSTEP_RETURN_IF_ERROR(team->Launch());
  return team;
}

absl::Status RankTeam::Launch() {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) RunLauncher(command_, log_.get(), parent);
  process_ = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process_.open()) {
    const absl::Status status = absl::ErrnoToStatus(errno, "pidfd_open");
    kill(pid, SIGKILL);
    waitpid(pid, &wait_status_, 0);
    return status;
  }
  pid_ = pid;
  ranks_.resize(static_cast<size_t>(command_.world_size));
  connected_.resize(ranks_.size());
  return absl::OkStatus();
}

RankTeam::~RankTeam() { Stop(absl::Seconds(10)).IgnoreError(); }

absl::Status RankTeam::AwaitRanks(absl::Duration timeout) {
  const Deadline deadline(timeout);
  for (size_t i = 0; i < ranks_.size();) {
    pollfd events[] = {{listener_.fd(), POLLIN, 0},
                       {process_.get(), POLLIN, 0}};
    const int ready = poll(events, 2, PollMilliseconds(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(i, " of ", ranks_.size(), " ranks connected within ",
                       absl::FormatDuration(timeout)));
    }
    if (events[0].revents != 0) {
      LOCKSTEP_RETURN_IF_ERROR(AcceptRank(deadline));
      ++i;
    } else if (events[1].revents != 0) {
      return EndedEarly();
    }
  }
  return absl::OkStatus();
}

absl::Status RankTeam::AcceptRank(const Deadline& deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnChannel channel, listener_.Accept());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string message,
                            channel.Receive(deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(const RankHello hello, Decode<RankHello>(message));
  if (hello.world_size != command_.world_size) {
    return absl::FailedPreconditionError(
        absl::StrCat("a rank is one of ", hello.world_size, ", not of ",
                     command_.world_size, " as asked"));
  }
  const auto rank = static_cast<size_t>(hello.rank);
  if (hello.rank < 0 || rank >= ranks_.size() || connected_[rank]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", hello.rank, " of ", hello.world_size, " is one too many"));
  }
  connected_[rank] = true;
  ranks_[rank] = std::move(channel);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RankTeam::Exchange(
    absl::string_view message, absl::Duration timeout) {
  const Deadline deadline(timeout);
  absl::Status cause;
  for (TurnChannel& rank : ranks_) KeepCause(cause, rank.Send(message));
  std::vector<std::string> answers;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const absl::StatusOr<std::string> reply = ranks_[rank].Receive(deadline);
    const absl::StatusOr<std::string> answer =
        reply.ok() ? DecodeAnswer(*reply) : reply.status();
    if (answer.ok()) {
      answers.push_back(*answer);
    } else {
      KeepCause(cause, Named(absl::StrCat("rank ", rank), answer.status()));
    }
  }
  if (absl::IsUnavailable(cause) && AwaitEnd(absl::Seconds(2))) {
    return EndedEarly();
  }
  LOCKSTEP_RETURN_IF_ERROR(cause);
  return answers;
}

absl::Status RankTeam::Stop(absl::Duration timeout) {
  listener_.Close();
  ranks_.clear();
  if (pid_ > 0 && !AwaitEnd(timeout)) {
    kill(pid_, SIGKILL);
    AwaitEnd(absl::InfiniteDuration());
    return absl::AbortedError(absl::StrCat("the ranks did not end within ",
                                           absl::FormatDuration(timeout)));
  }
  if (wait_status_ == 0) return absl::OkStatus();
  return absl::AbortedError(LastLine());
}

absl::Status RankTeam::EndedEarly() {
  AwaitEnd(absl::InfiniteDuration());
  return absl::UnavailableError(LastLine());
}

bool RankTeam::AwaitEnd(absl::Duration timeout) {
  if (pid_ < 0) return true;
  const Deadline deadline(timeout);
  pollfd ended = {process_.get(), POLLIN, 0};
  while (poll(&ended, 1, PollMilliseconds(deadline)) <= 0) {
    if (deadline.passed()) return false;
  }
  while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return true;
}

std::string RankTeam::LastLine() const {
  struct stat info = {};
  if (fstat(log_.get(), &info) != 0) return "";
  const int64_t begin = std::max<int64_t>(info.st_size - kLongestQuote, 0);
  std::string text(static_cast<size_t>(info.st_size - begin), '\0');
  const ssize_t size = pread(log_.get(), text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  std::string last = "its processes ended without a word";
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view words = absl::StripAsciiWhitespace(line);
    // Lines of dashes frame mpirun's messages.
    if (words.find_first_not_of('-') != absl::string_view::npos) {
      last = std::string(words);
    }
  }
  return last;
}

}  // namespace lockstep::benchmarks
