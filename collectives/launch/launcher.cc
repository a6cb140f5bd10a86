// The launcher's part of a run: forks the supervisor, passes signals on to it,
// forwards the ranks' output, and collects their outcomes.
#include "collectives/launch/launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/node_group.h"
#include "collectives/launch/output_forwarder.h"
#include "collectives/launch/rank_placement.h"
#include "collectives/launch/supervisor.h"

namespace lockstep {

ReservedPort ReservePort(bool of_all_addresses) {
  ReservedPort result = {
      .socket = OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr =
      htonl(of_all_addresses ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&address);
  const int fd = result.socket.get();
  if (!result.socket.open() ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, any, size) != 0 || getsockname(fd, any, &size) != 0) {
    return {};
  }
  result.port = ntohs(address.sin_port);
  return result;
}

namespace {

// Sets up signals and children for the duration of a launch. The signals that a
// launcher passes on, and SIGCHLD, are blocked and read from a signalfd.
// SIGCHLD is not ignored. Orphaned descendants become children of this process
// (PR_SET_CHILD_SUBREAPER). The destructor restores everything. For
// single-threaded processes.
class ProcessScope {
 public:
  ProcessScope() {
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
  ProcessScope(const ProcessScope&) = delete;
  ProcessScope& operator=(const ProcessScope&) = delete;
  ~ProcessScope() {
    prctl(PR_SET_CHILD_SUBREAPER, old_subreaper_);
    sigaction(SIGPIPE, &old_pipe_action_, nullptr);
    sigaction(SIGCHLD, &old_child_action_, nullptr);
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }

  // SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2, without the signals
  // that the process ignores: a run under nohup must outlive its terminal.
  const sigset_t& passed_on() const { return passed_on_; }

  // The signal mask from before.
  const sigset_t& old_mask() const { return old_mask_; }

  // Makes write() to a broken pipe fail instead of raising SIGPIPE. Not part of
  // the constructor, since children would inherit the setting.
  void IgnoreBrokenPipes() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, nullptr);
  }

 private:
  sigset_t passed_on_ = {};
  sigset_t old_mask_ = {};
  struct sigaction old_child_action_ = {};
  struct sigaction old_pipe_action_ = {};
  int old_subreaper_ = 0;
};

// The launcher's loop while the supervisor lives, and the rest of the output
// after that.
class Session {
 public:
  Session(OwnedFd channel, OwnedFd signals, OutputForwarder output,
          NodeGroup* nodes)
      : channel_(std::move(channel)),
        signals_(std::move(signals)),
        output_(std::move(output)),
        nodes_(nodes) {}

  // Returns when the supervisor has closed its end of the channel.
  void RunUntilSupervisorEnds() {
    while (channel_.open()) PollOnce(/*timeout=*/-1);
  }

  // Writes the output that is left. If the reader does not read, another signal
  // that asks to end stops the wait.
  void Drain() {
    while (!output_.Done() && !abandoned_) {
      // All ranks are gone, so their pipes end at once, unless a rank passed
      // its pipe to a process outside the run.
      if (!PollOnce(output_.HasPending() ? -1 : 0)) output_.CloseSources();
    }
  }

  const std::vector<SupervisorEvent>& events() const { return events_; }
  std::vector<std::string> TakeKeptOutput() { return output_.TakeKept(); }
  const absl::Status& log_status() const { return output_.log_status(); }

 private:
  bool PollOnce(int timeout) {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0},
                               {channel_.get(), POLLIN, 0},
                               {FailedNodeFd(), POLLIN, 0}};
    output_.AddPollFds(fds);
    if (poll(fds.data(), fds.size(), timeout) == 0) return false;
    if (fds[0].revents != 0) ReadSignals();
    if (fds[1].revents != 0) ReadEvent();
    if (fds[2].revents != 0) EndRanks();
    output_.HandleEvents(std::span(fds).subspan(3));
    return true;
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const unsigned char signal = static_cast<unsigned char>(info.ssi_signo);
      if (channel_.open()) {
        send(channel_.get(), &signal, sizeof(signal),
             MSG_NOSIGNAL | MSG_DONTWAIT);
      } else {
        abandoned_ |= IsTerminationSignal(signal);
      }
    }
  }

  // Returns a descriptor that is readable once another node has failed; -1
  // after the ranks have been told to end.
  int FailedNodeFd() const {
    return nodes_ == nullptr || ranks_told_to_end_ ? -1 : nodes_->failure_fd();
  }

  void EndRanks() {
    ranks_told_to_end_ = true;
    const unsigned char failed_elsewhere = kFailedElsewhere;
    send(channel_.get(), &failed_elsewhere, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void TellNodes(const RankOutcome& ended) {
    if (nodes_ == nullptr || ended.stopped || ended.wait_status == 0) return;
    LaunchSummary summary;
    summary.ranks = {ended};
    summary.ranks[0].rank += nodes_->place().first_rank;
    nodes_->Fail(ExitStatus(summary), DescribeFailure(summary),
                 start_ + absl::ToChronoNanoseconds(ended.after));
  }

  void ReadEvent() {
    SupervisorEvent event;
    const ssize_t size =
        recv(channel_.get(), &event, sizeof(event), MSG_DONTWAIT);
    if (size == sizeof(event)) {
      events_.push_back(event);
      if (event.kind == SupervisorEvent::kRankEnded) TellNodes(event.ended);
    } else if (size >= 0 || (errno != EAGAIN && errno != EINTR)) {
      channel_.Close();
    }
  }

  OwnedFd channel_;
  OwnedFd signals_;
  OutputForwarder output_;
  NodeGroup* const nodes_;
  // When the ranks started.
  const NodeGroup::Clock::time_point start_ = NodeGroup::Clock::now();
  std::vector<SupervisorEvent> events_;
  // Whether the ranks were told to end because another node failed.
  bool ranks_told_to_end_ = false;
  bool abandoned_ = false;
};

absl::Status CheckOptions(const LaunchOptions& options) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  if (options.nproc < 1) {
    return wrong("nproc is ", options.nproc, "; it must be at least 1");
  }
  if (options.nproc > kMostRanksOnHost) {
    return wrong("nproc is ", options.nproc, "; it must be at most ",
                 kMostRanksOnHost);
  }
  if (options.argv.empty() || options.argv[0].empty()) {
    return wrong("no command to launch");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return wrong("the timeout is ", absl::FormatDuration(options.timeout),
                 "; it must be more than 0");
  }
  const size_t nproc = static_cast<size_t>(options.nproc);
  if (!options.placements.empty() && options.placements.size() != nproc) {
    return wrong(options.placements.size(), " placements for ", nproc,
                 " ranks");
  }
  return absl::OkStatus();
}

// Opens standard descriptors that are closed. Otherwise a pipe of the launcher
// could get number 0, 1 or 2, which a rank overwrites.
void FillStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// Everything that a run needs before it starts.
struct Preparation {
  // `file` and `port` are where the ranks meet; held open while they may need
  // them.
  OwnedFd file;  // Anonymous memory.
  ReservedPort port;
  OwnedFd signals;
  OwnedFd channel;  // To the supervisor.
  OutputForwarder output;
  SupervisorPlan plan;
};

NodeAssignment AssignmentOf(const LaunchOptions& options,
                            const Preparation& run) {
  if (options.nodes != nullptr) return options.nodes->place();
  return {.world_size = options.nproc,
          .master_address = "127.0.0.1",
          .master_port = run.port.port};
}

std::vector<std::string> RankVariables(const LaunchOptions& options, int rank,
                                       const RankPlacement& placement,
                                       const Preparation& run) {
  Environment changes = placement.environment;
  const NodeAssignment place = AssignmentOf(options, run);
  if (place.master_port != 0) {
    changes.push_back({"MASTER_ADDR", place.master_address});
    changes.push_back({"MASTER_PORT", absl::StrCat(place.master_port)});
  }
  changes.insert(changes.end(), options.environment.begin(),
                 options.environment.end());
  changes.push_back({"RANK", absl::StrCat(place.first_rank + rank)});
  changes.push_back({"WORLD_SIZE", absl::StrCat(place.world_size)});
  changes.push_back({"LOCAL_RANK", absl::StrCat(rank)});
  changes.push_back({"LOCAL_WORLD_SIZE", absl::StrCat(options.nproc)});
  changes.push_back({"GROUP_RANK", absl::StrCat(place.node)});
  changes.push_back({"GROUP_WORLD_SIZE", absl::StrCat(place.nodes)});
  // The file is for ranks of one host; ranks on several hosts meet at the port.
  constexpr char kFile[] = "LOCKSTEP_RENDEZVOUS";
  if (options.nodes != nullptr) return MergedEnvironment(changes, {kFile});
  changes.push_back(
      {kFile, absl::StrCat("/proc/", getpid(), "/fd/", run.file.get())});
  return MergedEnvironment(changes);
}

absl::StatusOr<LaunchSummary> Summarize(
    const LaunchOptions& options, const std::vector<SupervisorEvent>& events) {
  LaunchSummary summary;
  for (const SupervisorEvent& event : events) {
    switch (event.kind) {
      case SupervisorEvent::kRankEnded:
        summary.ranks.push_back(event.ended);
        if (options.nodes != nullptr) {
          summary.ranks.back().rank += options.nodes->place().first_rank;
        }
        break;
      case SupervisorEvent::kRankNotStarted:
        return absl::ErrnoToStatus(
            event.value, absl::StrCat("cannot run \"", options.argv[0],
                                      "\" as rank ", event.ended.rank));
      case SupervisorEvent::kSignalReceived:
        summary.received_signal = event.value;
        break;
      case SupervisorEvent::kTimedOut:
        summary.timed_out = options.timeout;
        break;
      case SupervisorEvent::kSurvivors:
        return absl::DeadlineExceededError(
            absl::StrCat("a process of the run has survived SIGKILL for ",
                         absl::FormatDuration(kSurvivalLimit)));
    }
  }
  return summary;
}

// Reaps the supervisor. If it did not exit with 0, ends the processes it left.
absl::Status AwaitSupervisor(pid_t supervisor, std::span<const pid_t> spared) {
  int wait_status = 0;
  while (waitpid(supervisor, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (wait_status == 0) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(
      KillChildren(spared, kSurvivalLimit, [](pid_t, int) {}));
  return absl::AbortedError(absl::StrCat(
      "the launcher's supervisor process (pid ", supervisor, ") ",
      WIFSIGNALED(wait_status)
          ? absl::StrCat("was killed by signal ",
                         FormatSignal(WTERMSIG(wait_status)))
          : absl::StrCat("exited with status ", WEXITSTATUS(wait_status)),
      "; all ranks were stopped"));
}

// Prepares the pipes and the logs, if the ranks' output passes through the
// launcher.
absl::Status PrepareOutput(const LaunchOptions& options, Preparation& run) {
  if (!options.prefix_output && options.log_dir.empty() &&
      options.keep_output_bytes == 0) {
    return absl::OkStatus();
  }
  OutputOptions output = {.prefix = options.prefix_output,
                          .first_rank = AssignmentOf(options, run).first_rank,
                          .keep_bytes = options.keep_output_bytes};
  if (!options.log_dir.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        output.logs,
        OpenRankLogs(options.log_dir, options.nproc, output.first_rank));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      run.output, OutputForwarder::Create(options.nproc, STDOUT_FILENO,
                                          STDERR_FILENO, std::move(output)));
  run.plan.outputs = run.output.TakeRankEnds();
  return absl::OkStatus();
}

// Prepares the environment and the cores of each rank.
absl::Status PrepareRanks(const LaunchOptions& options, Preparation& run) {
  std::vector<RankPlacement> placements = options.placements;
  if (placements.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(placements, PlaceRanks(options.nproc, {}));
  }
  for (int rank = 0; rank < options.nproc; ++rank) {
    RankPlacement& placement = placements[static_cast<size_t>(rank)];
    run.plan.environments.push_back(
        RankVariables(options, rank, placement, run));
    run.plan.cpus.push_back(std::move(placement.cpus));
  }
  return absl::OkStatus();
}

absl::StatusOr<Preparation> Prepare(const LaunchOptions& options,
                                    const ProcessScope& scope) {
  Preparation run;
  run.file = OwnedFd(memfd_create("lockstep-rendezvous", MFD_CLOEXEC));
  run.port = ReservePort();
  run.signals =
      OwnedFd(signalfd(-1, &scope.passed_on(), SFD_CLOEXEC | SFD_NONBLOCK));
  int channel[2] = {-1, -1};
  if (!run.file.open() || !run.signals.open() ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) != 0) {
    return absl::ErrnoToStatus(errno, "cannot prepare a launch");
  }
  run.channel = OwnedFd(channel[0]);
  run.plan.channel = OwnedFd(channel[1]);
  LOCKSTEP_RETURN_IF_ERROR(PrepareOutput(options, run));
  LOCKSTEP_RETURN_IF_ERROR(PrepareRanks(options, run));
  run.plan.argv = options.argv;
  run.plan.passed_on = scope.passed_on();
  run.plan.rank_mask = scope.old_mask();
  run.plan.grace = options.grace;
  run.plan.timeout = options.timeout;
  return run;
}

}  // namespace

absl::StatusOr<LaunchSummary> Launch(const LaunchOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options));
  FillStandardDescriptors();
  // The caller's output comes before the ranks' lines.
  std::fflush(stdout);
  ProcessScope scope;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<pid_t> spared,
                            ListChildren(getpid()));
  LOCKSTEP_ASSIGN_OR_RETURN(Preparation run, Prepare(options, scope));
  const pid_t supervisor = fork();
  if (supervisor < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (supervisor == 0) {
    run.channel.Close();
    run.output.CloseSources();
    run.port.socket.Close();
    if (options.nodes != nullptr) options.nodes->CloseInFork();
    RunSupervisor(std::move(run.plan));
    _exit(0);
  }
  run.plan = SupervisorPlan();  // Only the supervisor holds the ranks' ends.
  scope.IgnoreBrokenPipes();
  if (options.nodes != nullptr) options.nodes->Watch();
  Session session(std::move(run.channel), std::move(run.signals),
                  std::move(run.output), options.nodes);
  session.RunUntilSupervisorEnds();
  const absl::Status ended = AwaitSupervisor(supervisor, spared);
  session.Drain();
  LOCKSTEP_RETURN_IF_ERROR(ended);
  LOCKSTEP_ASSIGN_OR_RETURN(LaunchSummary summary,
                            Summarize(options, session.events()));
  summary.kept_output = session.TakeKeptOutput();
  summary.log_error = std::string(session.log_status().message());
  return summary;
}

}  // namespace lockstep
