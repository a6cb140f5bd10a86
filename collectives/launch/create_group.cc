#include "collectives/launch/create_group.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/fnv1a.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/sockets.h"
#include "collectives/rendezvous/tcp_rendezvous.h"
#include "collectives/tcp/tcp_group.h"

namespace lockstep {
namespace {

// How to tell one launcher's runs from each other.
struct RunMarks {
  absl::string_view name;  // Part of the folder's name.
  std::vector<absl::string_view> variables;
  // Whether all variables must be set; otherwise an unset one counts as "".
  bool all_needed = false;
  // For FindLauncherProcess: set if one process starts all ranks of a host.
  std::vector<absl::string_view> rank_variables = {};
};

RunMarks MarksOf(RankLauncher launcher) {
  switch (launcher) {
    case RankLauncher::kTorchrun:
      return {.name = "torchrun",
              .variables = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                            "MASTER_ADDR", "MASTER_PORT"},
              .rank_variables = {"RANK", "TORCHELASTIC_RUN_ID", "MASTER_PORT"}};
    case RankLauncher::kOpenMpi:
      return {.name = "mpirun",
              .variables = {"PMIX_NAMESPACE"},
              .rank_variables = {"OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"}};
    case RankLauncher::kMpich:
      return {.name = "mpirun",
              .variables = {"PMI_SIZE"},
              .rank_variables = {"PMI_RANK", "PMI_SIZE"}};
    case RankLauncher::kSlurm:
      return {.name = "srun",
              .variables = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
              .all_needed = true};
    case RankLauncher::kLockstep:
    case RankLauncher::kVariables:
      break;
  }
  return {.name = "run",
          .variables = {"MASTER_ADDR", "MASTER_PORT"},
          .all_needed = true};
}

absl::StatusOr<std::string> ChooseRunFolder(const RankEnvironment& environment,
                                            EnvironmentLookup lookup,
                                            const ProcessIdentity& launcher) {
  const RunMarks marks = MarksOf(environment.launcher);
  std::string run;
  for (const absl::string_view name : marks.variables) {
    const std::optional<std::string> value = lookup(name);
    if (marks.all_needed && !value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is not set, which would tell this run from others: set ",
          "LOCKSTEP_RENDEZVOUS to the path of a file, the same for all ranks"));
    }
    absl::StrAppend(&run, name, "=", value.value_or(""), "\n");
  }
  if (!marks.rank_variables.empty()) {
    absl::StrAppend(&run, launcher.pid, " ", launcher.start_ticks);
  }
  const std::string temporary = lookup("TMPDIR").value_or("");
  return absl::StrCat(temporary.empty() ? "/tmp" : temporary, "/lockstep-",
                      geteuid(), "-", marks.name, "-",
                      absl::Hex(Fnv1a(run), absl::kZeroPad16));
}

bool AreOnOneHost(const RankEnvironment& environment) {
  return environment.local_world_size == environment.world_size;
}

absl::StatusOr<int> ReadPort(EnvironmentLookup lookup, absl::string_view name) {
  const std::string text = lookup(name).value_or("");
  int port = 0;
  if (!absl::SimpleAtoi(text, &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", name, "=\"", text, "\" is not a port"));
  }
  return port;
}

absl::StatusOr<RendezvousLocation> ChooseRunPort(
    const RankEnvironment& environment, EnvironmentLookup lookup) {
  constexpr absl::string_view kOwnPort = "LOCKSTEP_MASTER_PORT";
  constexpr absl::string_view kPort = "MASTER_PORT";
  const bool one_host = AreOnOneHost(environment);
  const bool own = lookup(kOwnPort).has_value();
  if ((!one_host && !lookup("MASTER_ADDR").has_value()) ||
      (!own && !lookup(kPort).has_value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("of ", environment.world_size, " ranks only ",
                     environment.local_world_size,
                     " are on this host: set MASTER_ADDR to the host of rank 0 "
                     "and MASTER_PORT "
                     "to a free port there, for all ranks"));
  }
  RendezvousLocation place;
  place.address = lookup("MASTER_ADDR").value_or("127.0.0.1");
  LOCKSTEP_ASSIGN_OR_RETURN(place.port,
                            ReadPort(lookup, own ? kOwnPort : kPort));
  if (!own && environment.launcher == RankLauncher::kTorchrun) ++place.port;
  place.listen_address = lookup("LOCKSTEP_LISTEN_ADDRESS").value_or("");
  place.token = lookup("LOCKSTEP_TOKEN").value_or("");
  return place;
}

ProcessIdentity LauncherOf(const RankEnvironment& environment) {
  const RunMarks marks = MarksOf(environment.launcher);
  if (marks.rank_variables.empty()) return {};
  return FindLauncherProcess(marks.rank_variables);
}

// Opens the rendezvous at `place`. A folder and its file are removed once all
// ranks have met and have destroyed their rendezvous objects.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenRendezvous(
    const RendezvousLocation& place, int rank, int world_size,
    const MeetingOptions& meeting) {
  const bool own_folder = !place.folder.empty();
  if (own_folder || !place.file.empty()) {
    return OpenFileRendezvous(
        {.path = own_folder ? place.folder + "/rendezvous" : place.file,
         .rank = rank,
         .world_size = world_size,
         .timeout = meeting.timeout,
         .own_folder = own_folder});
  }
  return TcpRendezvous::Open({.address = place.address,
                              .port = place.port,
                              .token = place.token,
                              .listen_address = place.listen_address,
                              .rank = rank,
                              .world_size = world_size,
                              .timeout = meeting.timeout,
                              .tell = meeting.tell});
}

bool IsLoopback(const std::string& host) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, 0);
  return addresses.ok() && addresses->front().IsLoopback();
}

// Returns the address at which the other ranks of a group that meets at `place`
// reach this rank.
std::string OwnHost(const RendezvousLocation& place,
                    const Rendezvous& rendezvous) {
  const std::optional<std::string> given =
      LookUpProcessEnvironment("LOCKSTEP_HOST_ADDRESS");
  if (given.has_value()) return *given;
  std::string own = rendezvous.own_address();
  // A host may map its own name to loopback.
  const bool deceptive = IsLoopback(own) && !place.listen_address.empty() &&
                         !IsLoopback(place.listen_address);
  if (own.empty() || deceptive) own = OwnAddress().value_or("127.0.0.1");
  return own;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinMeeting(
    const RankEnvironment& environment, bool by_tcp,
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const RendezvousLocation place,
      ChooseRendezvousLocation(environment, LookUpProcessEnvironment,
                               LauncherOf(environment)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Rendezvous> rendezvous,
      OpenRendezvous(place, environment.rank, environment.world_size,
                     {.timeout = options.timeout}));
  if (!by_tcp) return JoinProcessGroup(*rendezvous, options);
  const std::string host = OwnHost(place, *rendezvous);
  return JoinTcpGroup(std::move(rendezvous),
                      {.host = host, .token = place.token}, options);
}

using Backends = std::map<std::string, BackendFactory, std::less<>>;

Backends& RegisteredBackends() {
  static Backends* const backends = new Backends;
  return *backends;
}

absl::Status NotLinked(absl::string_view backend) {
  if (backend != "mpi" && backend != "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown backend '", backend,
                     "': must be threads, processes, tcp, mpi or nccl"));
  }
  return absl::UnimplementedError(absl::StrCat(
      "backend ", backend, ": this program was not linked with //collectives/",
      backend, ":", backend, "_group"));
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinGroup(
    absl::string_view backend, const GroupOptions& options) {
  if (backend == "processes" || backend == "tcp") {
    LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                              RequireRankEnvironment());
    return JoinMeeting(environment,
                       backend == "tcp" || !AreOnOneHost(environment), options);
  }
  const auto registered = RegisteredBackends().find(backend);
  if (registered == RegisteredBackends().end()) return NotLinked(backend);
  return registered->second(options);
}

}  // namespace

ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables) {
  std::vector<std::string> mine;
  for (const absl::string_view name : variables) {
    const std::optional<std::string> value = LookUpProcessEnvironment(name);
    if (value.has_value()) mine.push_back(absl::StrCat(name, "=", *value));
  }
  pid_t pid = getppid();
  while (true) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.has_value()) return {.pid = pid};
    const bool is_of_this_rank =
        !mine.empty() &&
        std::all_of(mine.begin(), mine.end(), [pid](const std::string& entry) {
          return HasVariable(pid, entry);
        });
    if (!is_of_this_rank || stat->parent == 0) {
      return {.pid = pid, .start_ticks = stat->start_ticks};
    }
    pid = stat->parent;
  }
}

absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher) {
  if (!environment.rendezvous.empty() && AreOnOneHost(environment)) {
    return RendezvousLocation{.file = environment.rendezvous};
  }
  if (lookup("LOCKSTEP_MASTER_PORT").has_value() ||
      !AreOnOneHost(environment)) {
    return ChooseRunPort(environment, lookup);
  }
  RendezvousLocation place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.folder,
                            ChooseRunFolder(environment, lookup, launcher));
  return place;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options) {
  return JoinMeeting(environment, !AreOnOneHost(environment), options);
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroupAt(
    const RendezvousLocation& place, int rank, int world_size,
    const MeetingOptions& meeting, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> rendezvous,
                            OpenRendezvous(place, rank, world_size, meeting));
  const std::string host = OwnHost(place, *rendezvous);
  return JoinTcpGroup(std::move(rendezvous),
                      {.host = host, .token = place.token}, options);
}

bool RegisterBackend(absl::string_view name, BackendFactory factory) {
  RegisteredBackends().insert_or_assign(std::string(name), std::move(factory));
  return true;
}

absl::StatusOr<LocalRanks> CreateGroup(absl::string_view backend,
                                       int world_size,
                                       const GroupOptions& options) {
  if (world_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, " is negative"));
  }
  if (backend == "threads") {
    return CreateThreadGroup(
        world_size == 0 ? std::min(UsableCores(), kMaxWorldSize) : world_size,
        options);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                            JoinGroup(backend, options));
  if (world_size != 0 && rank->world_size() != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group should have ", world_size, " ranks, but ",
                     rank->world_size(), " were started"));
  }
  LocalRanks ranks;
  ranks.push_back(std::move(rank));
  return ranks;
}

}  // namespace lockstep
