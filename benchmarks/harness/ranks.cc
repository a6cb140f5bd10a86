#include "benchmarks/harness/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/rounds.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/groups/rendezvous_location.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_placement.h"
#include "report/document.h"

namespace lockstep::benchmarks {

const char* Name(RankKind kind) {
  constexpr const char* kNames[] = {"processes", "tcp",   "threads",
                                    "mpi",       "apart", "ddp"};
  return kNames[static_cast<int>(kind)];
}

absl::Status RunAsRanks(
    RankKind kind, int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& body) {
  if (kind == RankKind::kThreads) {
    return RunOnThreads(world_size, options, body);
  }
  if (kind == RankKind::kMpi) {
    LOCKSTEP_ASSIGN_OR_RETURN(const LocalRanks ranks,
                              CreateGroup("mpi", world_size, options));
    return body(*ranks[0]);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                            JoinLaunchedGroup(environment, options));
  return body(*group);
}

// Starts Open MPI's ranks.
namespace {

// The longest TMPDIR for Open MPI. It puts sockets there, whose paths may have
// 107 characters.
constexpr size_t kLongTmpdir = 40;

// The variable that names the folder of the memory that Open MPI's ranks share.
constexpr char kMpiMemory[] = "OMPI_MCA_btl_vader_backing_directory";

// The size of a shared file. Open MPI 4.1 has one for each rank, and PMIx two.
constexpr int64_t kMpiSegment = 4 << 20;

}  // namespace

TeamCommand MpirunCommand(int world_size, int cores,
                          const std::string& folder) {
  TeamCommand command = {
      .argv = {"mpirun", "--oversubscribe", "-np", absl::StrCat(world_size)},
      .world_size = world_size};
  if (geteuid() == 0) command.argv.push_back("--allow-run-as-root");
  const char* const tmpdir = std::getenv("TMPDIR");
  std::string temporary = tmpdir == nullptr ? "" : tmpdir;
  if (!folder.empty()) {
    command.environment.emplace_back(kMpiMemory, folder);
    temporary = folder;
  }
  if (temporary.size() > kLongTmpdir) temporary = "/tmp";
  if (!temporary.empty()) command.environment.emplace_back("TMPDIR", temporary);
  // Open MPI 6 does not start without HOME.
  if (std::getenv("HOME") == nullptr) {
    command.environment.emplace_back("HOME", "/");
  }
  if (world_size > cores) {
    // The scheduler would leave some cores with more ranks than others.
    command.argv.insert(command.argv.end(),
                        {"--bind-to", "core:overload-allowed"});
    command.environment.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  }
  return command;
}

absl::StatusOr<TemporaryFolder> CreateFolderWithRoom(
    const std::vector<std::string>& folders, int64_t bytes) {
  std::vector<std::string> reasons;
  for (const std::string& folder : folders) {
    struct statvfs room = {};
    if (statvfs(folder.c_str(), &room) != 0) {
      reasons.push_back(absl::StrCat(folder, " cannot be used"));
      continue;
    }
    const auto free = static_cast<int64_t>(room.f_bavail) *
                      static_cast<int64_t>(room.f_frsize);
    if (free < bytes) {
      reasons.push_back(
          absl::StrCat(folder, " has ", report::Bytes(free), " free"));
      continue;
    }
    absl::StatusOr<TemporaryFolder> made =
        TemporaryFolder::Create("mpi-ranks", folder);
    if (made.ok()) return made;
    reasons.push_back(std::string(made.status().message()));
  }
  return absl::UnavailableError(absl::StrCat(
      "Open MPI's ranks share files of ", report::Bytes(bytes),
      ", for which there is no room: ", absl::StrJoin(reasons, ", ")));
}

absl::StatusOr<TemporaryFolder> CreateMpiFolder(int world_size) {
  std::vector<std::string> folders;
  if (const char* const chosen = std::getenv(kMpiMemory)) {
    folders = {chosen};
  } else {
    const char* const tmpdir = std::getenv("TMPDIR");
    folders = {"/dev/shm", tmpdir == nullptr ? "/tmp" : tmpdir};
  }
  return CreateFolderWithRoom(folders, (world_size + 2) * kMpiSegment);
}

// Starts a child process that launches the ranks, and connects to every rank.
namespace {

constexpr int64_t kLongestQuote = 4096;  // Bytes from the end of a log.

// Runs the process that launches a team, until its end.
[[noreturn]] void RunLauncher(const TeamCommand& command, int log,
                              pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  // Open descriptors would keep the driver's connections alive after its end.
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
  // A rank's own last line says more than how the rank ended.
  struct stat info = {};
  if (!failure.empty() && fstat(STDERR_FILENO, &info) == 0 &&
      info.st_size == 0) {
    std::fprintf(stderr, "%s\n", failure.c_str());
  }
  _exit(summary.ok() ? ExitStatus(*summary) : 1);
}

// Keeps the error that explains those of other ranks. An error that says that a
// rank lost another one, or stopped because of an earlier error, explains
// nothing.
void UpdateCause(absl::Status& cause, const absl::Status& status) {
  const auto follows = [](const absl::Status& error) {
    return absl::IsUnavailable(error) || absl::IsFailedPrecondition(error);
  };
  if (cause.ok() || (follows(cause) && !status.ok() && !follows(status))) {
    cause = status;
  }
}

}  // namespace

// Teams of a launched run.
namespace {

// The length of a turn is not limited, so this is long. A rank that dies is
// noticed at once; a rank whose host is cut off is noticed after this time.
constexpr absl::Duration kLaunchedTimeout = absl::Minutes(15);

// The placeholder for the name of each rank's own listener.
constexpr char kListenerPlaceholder[] = "{listener}";

LaunchedRun* the_driver = nullptr;

// Returns a name of this host: what the kernel says, and what the launcher
// treats as a node.
std::string ThisNode() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::string node = absl::StrCat(
      ReadFile("/proc/sys/kernel/random/boot_id").value_or(""), host);
  for (const char* name : {"GROUP_RANK", "SLURM_NODEID"}) {
    absl::StrAppend(&node, " ", LookUpProcessEnvironment(name).value_or(""));
  }
  return node;
}

}  // namespace

std::vector<report::Host> HostsOf(const std::vector<RankHost>& ranks) {
  std::vector<report::Host> hosts;
  std::vector<std::string> nodes;       // By host, as the next two.
  std::vector<std::set<int32_t>> cpus;  // Of all its ranks.
  std::vector<int32_t> quotas;          // In cores.
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankHost& at = ranks[rank];
    const auto found = std::find(nodes.begin(), nodes.end(), at.node);
    const auto host = static_cast<size_t>(found - nodes.begin());
    if (found == nodes.end()) {
      nodes.push_back(at.node);
      hosts.push_back({.name = at.name});
      cpus.emplace_back();
      quotas.push_back(std::numeric_limits<int32_t>::max());
    }
    hosts[host].ranks.push_back(static_cast<int>(rank));
    cpus[host].insert(at.cpus.begin(), at.cpus.end());
    // If a rank has fewer cores than CPUs, a quota limits all processes
    // together.
    if (at.cores < static_cast<int32_t>(at.cpus.size())) {
      quotas[host] = std::min(quotas[host], at.cores);
    }
    hosts[host].cores = std::max(
        1, std::min(quotas[host], static_cast<int32_t>(cpus[host].size())));
  }
  return hosts;
}

LaunchedRun::LaunchedRun(std::unique_ptr<Communicator> group)
    : group_(std::move(group)) {
  if (is_driver()) the_driver = this;
}

LaunchedRun::~LaunchedRun() {
  if (!is_driver()) return;
  the_driver = nullptr;
  teams_.clear();
  Command({.order = Order::kEnd}).status().IgnoreError();
}

absl::StatusOr<std::unique_ptr<LaunchedRun>> LaunchedRun::Join() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) return nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const RendezvousLocation place,
      ChooseRendezvousLocation(*environment, LookUpProcessEnvironment, {}));
  // A process that passes for the driver can run any command as this user.
  if (place.port != 0 && place.token.empty()) {
    return absl::InvalidArgumentError(
        "ranks that meet at a port and start programs need a token: export "
        "LOCKSTEP_TOKEN=$(openssl rand -hex 32), the same for every rank");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> group,
      JoinLaunchedGroup(*environment, {.timeout = kLaunchedTimeout}));
  std::unique_ptr<LaunchedRun> run(new LaunchedRun(std::move(group)));
  LOCKSTEP_RETURN_IF_ERROR(run->Meet());
  return run;
}

absl::Status LaunchedRun::Meet() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const RankHost own = {.node = ThisNode(),
                        .name = name,
                        .pid = getpid(),
                        .cpus = AffinityCpus(),
                        .cores = UsableCores()};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                            AllGatherObject(*group_, Encode(own)));
  std::vector<RankHost> ranks;
  for (const std::string& message : messages) {
    LOCKSTEP_ASSIGN_OR_RETURN(RankHost rank, Decode<RankHost>(message));
    nodes_.push_back(rank.node);
    if (rank.node == own.node) processes_.push_back(rank.pid);
    ranks.push_back(std::move(rank));
  }
  hosts_ = HostsOf(ranks);
  return absl::OkStatus();
}

int LaunchedRun::cores() const {
  int cores = 0;
  for (const report::Host& host : hosts_) cores += host.cores;
  return cores;
}

void DescribeHosts(const LaunchedRun* launched, report::Origin& origin) {
  if (launched == nullptr) return;
  origin.machine.cores = launched->hosts()[0].cores;
  if (launched->hosts().size() > 1) origin.hosts = launched->hosts();
}

// Each order is a message from the driver to all ranks, and an answer from each
// rank.
absl::Status LaunchedRun::Serve() {
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> orders,
                              AllGatherObject(*group_, ""));
    LOCKSTEP_ASSIGN_OR_RETURN(const Request request,
                              Decode<Request>(orders[0]));
    LOCKSTEP_RETURN_IF_ERROR(
        AllGatherObject(*group_, EncodeAnswer(HandleRequest(request)))
            .status());
    if (request.order == Order::kEnd) return absl::OkStatus();
  }
}

absl::StatusOr<std::vector<std::string>> LaunchedRun::Command(
    const Request& request) {
  LOCKSTEP_RETURN_IF_ERROR(AllGatherObject(*group_, Encode(request)).status());
  const absl::StatusOr<std::string> own = HandleRequest(request);
  // The team may have lost a rank, and this group may wait longer for that
  // rank's answer. So the error is printed first.
  if (absl::IsUnavailable(own.status()) ||
      absl::IsDeadlineExceeded(own.status())) {
    std::fprintf(stderr, "%s; waiting for the answers of the other ranks\n",
                 std::string(own.status().message()).c_str());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> replies,
                            AllGatherObject(*group_, EncodeAnswer(own)));
  absl::Status cause;
  std::vector<std::string> answers;
  for (const std::string& reply : replies) {
    const absl::StatusOr<std::string> answer = DecodeAnswer(reply);
    UpdateCause(cause, answer.status());
    if (answer.ok()) answers.push_back(*answer);
  }
  LOCKSTEP_RETURN_IF_ERROR(cause);
  return answers;
}

absl::StatusOr<std::string> LaunchedRun::HandleRequest(const Request& request) {
  if (request.order == Order::kEnd) {
    teams_.clear();
    return "";
  }
  if (request.order == Order::kStart) {
    if (group_->rank() < request.world_size) {
      LOCKSTEP_RETURN_IF_ERROR(StartHere(request));
    }
    return "";
  }
  const auto team = teams_.find(request.team);
  if (team == teams_.end()) return "";  // The team has other ranks only.
  const absl::Duration timeout = absl::Seconds(request.seconds);
  if (request.order == Order::kAwait) {
    LOCKSTEP_RETURN_IF_ERROR(team->second->AwaitRanks(timeout));
    return "";
  }
  if (request.order == Order::kAsk) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                              team->second->Exchange(request.message, timeout));
    return answers[0];
  }
  const absl::Status stopped = team->second->Stop(timeout);
  teams_.erase(team);
  LOCKSTEP_RETURN_IF_ERROR(stopped);
  return "";
}

absl::Status LaunchedRun::StartHere(const Request& request) {
  const int rank = group_->rank();
  const auto nodes =
      std::span(nodes_).first(static_cast<size_t>(request.world_size));
  const auto here = std::count(nodes.begin(), nodes.end(), nodes_[rank]);
  const auto before =
      std::count(nodes.begin(), nodes.begin() + rank, nodes_[rank]);
  // Overrides the variables that Launch() sets for a run of one process.
  std::vector<std::string> argv = {
      "env", absl::StrCat("RANK=", rank),
      absl::StrCat("WORLD_SIZE=", request.world_size),
      absl::StrCat("LOCAL_RANK=", before),
      absl::StrCat("LOCAL_WORLD_SIZE=", here)};
  if (here == request.world_size) {
    argv.push_back(absl::StrCat("LOCKSTEP_RENDEZVOUS=", request.file));
  } else {
    argv.push_back(absl::StrCat("LOCKSTEP_MASTER_PORT=", request.port));
    const auto address = LookUpProcessEnvironment("MASTER_ADDR");
    argv.push_back(absl::StrCat("MASTER_ADDR=", address.value_or("")));
  }
  argv.insert(argv.end(), request.environment.begin(),
              request.environment.end());
  const std::string folder =
      std::filesystem::path(OwnProgramPath()).parent_path().string();
  LOCKSTEP_ASSIGN_OR_RETURN(
      teams_[request.team],
      RankTeam::StartHere([&](const std::string& listener) {
        std::string there = request.folder;
        for (const std::string& word : request.argv) {
          argv.push_back(absl::StrReplaceAll(
              word, {{kListenerPlaceholder, listener}, {there, folder}}));
          there = folder;  // Only the program is moved; data may lie below its
                           // folder.
        }
        return TeamCommand{
            .argv = argv, .world_size = request.world_size, .only_rank = rank};
      }));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankTeam>> RankTeam::StartLaunched(
    LaunchedRun& run,
    const std::function<TeamCommand(const std::string& listener)>& command) {
  const TeamCommand what = command(kListenerPlaceholder);
  if (what.nproc != what.world_size || what.world_size > run.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the launcher has started ", run.world_size(),
        " ranks, each a process; this run needs ", what.world_size,
        what.nproc == what.world_size ? "" : " that are started otherwise"));
  }
  std::unique_ptr<RankTeam> team(new RankTeam(run));
  team->team_ = run.teams_begun_++;
  team->meeting_[0] = OwnedFd(memfd_create("team-rendezvous", MFD_CLOEXEC));
  ReservedPort port = ReservePort(/*of_all_addresses=*/true);
  if (!team->meeting_[0].open() || port.port == 0) {
    return absl::ErrnoToStatus(
        errno, "no file or port at which a team's ranks can meet");
  }
  team->meeting_[1] = std::move(port.socket);
  LaunchedRun::Request request = {
      .order = LaunchedRun::Order::kStart,
      .team = team->team_,
      .world_size = what.world_size,
      .port = port.port,
      .folder = std::filesystem::path(OwnProgramPath()).parent_path().string(),
      .file = absl::StrCat("/proc/", getpid(), "/fd/", team->meeting_[0].get()),
      .argv = what.argv};
  for (const auto& [name, value] : what.environment) {
    request.environment.push_back(absl::StrCat(name, "=", value));
  }
  team->ranks_.resize(static_cast<size_t>(what.world_size));
  LOCKSTEP_RETURN_IF_ERROR(run.Command(request).status());
  return team;
}

absl::StatusOr<std::vector<std::string>> RankTeam::SendOrder(
    LaunchedRun::Order order, absl::string_view message,
    absl::Duration timeout) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<std::string> answers,
      run_->Command({.order = order,
                     .team = team_,
                     .seconds = absl::ToDoubleSeconds(timeout),
                     .message = std::string(message)}));
  answers.resize(ranks_.size());  // Ranks beyond the team are left out.
  return answers;
}

absl::StatusOr<std::unique_ptr<RankTeam>> RankTeam::Start(
    const std::function<TeamCommand(const std::string& listener)>& command) {
  return the_driver == nullptr ? StartHere(command)
                               : StartLaunched(*the_driver, command);
}

absl::StatusOr<std::unique_ptr<RankTeam>> RankTeam::StartHere(
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
    SendSignal(pid, SIGKILL);
    waitpid(pid, &wait_status_, 0);
    return status;
  }
  pid_ = pid;
  ranks_.resize(
      static_cast<size_t>(command_.only_rank < 0 ? command_.world_size : 1));
  connected_.resize(ranks_.size());
  return absl::OkStatus();
}

RankTeam::~RankTeam() { Stop(absl::Seconds(10)).IgnoreError(); }

absl::Status RankTeam::AwaitRanks(absl::Duration timeout) {
  if (run_ != nullptr) {
    return SendOrder(LaunchedRun::Order::kAwait, "", timeout).status();
  }
  const Deadline deadline(timeout);
  for (size_t i = 0; i < ranks_.size();) {
    pollfd events[] = {{listener_.fd(), POLLIN, 0},
                       {process_.get(), POLLIN, 0}};
    const int ready = poll(events, 2, PollMilliseconds(deadline));
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      const std::string last = LastLine();
      return absl::DeadlineExceededError(absl::StrCat(
          i, " of ", ranks_.size(), " ranks connected within ",
          absl::FormatDuration(timeout), last.empty() ? "" : ": ", last));
    }
    if (events[0].revents != 0) {
      LOCKSTEP_RETURN_IF_ERROR(AcceptRank(deadline));
      ++i;
    } else if (events[1].revents != 0) {
      return ReapAndDescribeEnd();
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
        absl::StrCat("a rank belongs to a group of ", hello.world_size,
                     ", not of ", command_.world_size, " as requested"));
  }
  const int first = std::max(command_.only_rank, 0);
  const auto rank = static_cast<size_t>(hello.rank - first);
  if (hello.rank < first || rank >= ranks_.size() || connected_[rank]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", hello.rank, " of ", hello.world_size, " was not expected"));
  }
  connected_[rank] = true;
  ranks_[rank] = std::move(channel);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RankTeam::Exchange(
    absl::string_view message, absl::Duration timeout) {
  if (run_ != nullptr) {
    return SendOrder(LaunchedRun::Order::kAsk, message, timeout);
  }
  const Deadline deadline(timeout);
  absl::Status cause;
  for (TurnChannel& rank : ranks_) UpdateCause(cause, rank.Send(message));
  std::vector<std::string> answers;
  const auto first = static_cast<size_t>(std::max(command_.only_rank, 0));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const absl::StatusOr<std::string> reply = ranks_[rank].Receive(deadline);
    const absl::StatusOr<std::string> answer =
        reply.ok() ? DecodeAnswer(*reply) : reply.status();
    if (answer.ok()) {
      answers.push_back(*answer);
    } else {
      UpdateCause(cause,
                  Named(absl::StrCat("rank ", first + rank), answer.status()));
    }
  }
  if (absl::IsUnavailable(cause) && AwaitEnd(absl::Seconds(2))) {
    return ReapAndDescribeEnd();
  }
  LOCKSTEP_RETURN_IF_ERROR(cause);
  return answers;
}

absl::Status RankTeam::Stop(absl::Duration timeout) {
  if (run_ != nullptr) {
    if (ended_) return absl::OkStatus();
    ended_ = true;
    return SendOrder(LaunchedRun::Order::kStop, "", timeout).status();
  }
  listener_.Close();
  ranks_.clear();
  if (pid_ > 0 && !AwaitEnd(timeout)) {
    SendSignal(pid_, SIGKILL);
    AwaitEnd(absl::InfiniteDuration());
    return absl::AbortedError(absl::StrCat("the ranks did not end within ",
                                           absl::FormatDuration(timeout)));
  }
  if (wait_status_ == 0) return absl::OkStatus();
  return absl::AbortedError(DescribeLastOutput());
}

absl::Status RankTeam::ReapAndDescribeEnd() {
  AwaitEnd(absl::InfiniteDuration());
  return absl::UnavailableError(DescribeLastOutput());
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

std::string RankTeam::DescribeLastOutput() const {
  const std::string last = LastLine();
  return last.empty() ? "its processes ended without output" : last;
}

std::string RankTeam::LastLine() const {
  struct stat info = {};
  if (fstat(log_.get(), &info) != 0) return "";
  const int64_t begin = std::max<int64_t>(info.st_size - kLongestQuote, 0);
  std::string text(static_cast<size_t>(info.st_size - begin), '\0');
  const ssize_t size = pread(log_.get(), text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  std::string last;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view words = absl::StripAsciiWhitespace(line);
    // mpirun frames its messages with lines of dashes.
    if (words.find_first_not_of('-') != absl::string_view::npos) {
      last = std::string(words);
    }
  }
  return last;
}

}  // namespace lockstep::benchmarks
