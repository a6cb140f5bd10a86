// Single ranks and teams of ranks: their commands, their start and end, and the
// content of NCCL's log about them.
#include "benchmarks/all_reduce/teams.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/exchange.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

// Takes turns that update as many bytes as the buffers of `world_size` ranks
// take.
absl::Status RunUpdater(const std::string& listener, int world_size) {
  Updater updater(std::min(world_size, UsableCores()));
  return ServeTurns<TurnRequest>(
      listener, {0, 1},
      [&](const TurnRequest& request) -> absl::StatusOr<AllReduceTurn> {
        const int64_t bytes = request.count * SizeOf(request.type) *
                              world_size * (request.in_place ? 1 : 2);
        AllReduceTurn turn;
        LOCKSTEP_ASSIGN_OR_RETURN(turn.calls,
                                  updater.Time(bytes, request.iterations));
        return turn;
      });
}

// Takes turns in which `world_size` threads exchange messages.
absl::Status RunExchange(const std::string& listener, int world_size) {
  return ServeTurns<TurnRequest>(
      listener, {0, 1},
      [&](const TurnRequest& request) -> absl::StatusOr<AllReduceTurn> {
        AllReduceTurn turn;
        LOCKSTEP_ASSIGN_OR_RETURN(
            turn.calls,
            TimeExchange(world_size, request.count * SizeOf(request.type),
                         request.iterations));
        return turn;
      });
}

bool IsMpi(TeamKind kind) {
  return kind == TeamKind::kMpi || kind == TeamKind::kOpenMpi;
}

std::string ProgramOf(const TeamSetting& setting, TeamKind kind) {
  switch (kind) {
    case TeamKind::kMpi:
      return setting.folder + "/allreduce_rank_mpi";
    case TeamKind::kOpenMpi:
      return setting.folder + "/allreduce_peer_mpi";
    case TeamKind::kGloo:
      return setting.folder + "/allreduce_peer_gloo";
    case TeamKind::kOneCcl:
      return setting.folder + "/allreduce_peer_oneccl";
    case TeamKind::kNccl:
    case TeamKind::kPlainNccl:
      return setting.folder + "/allreduce_rank_nccl";
    default:
      return setting.folder + "/allreduce";
  }
}

const char* InstallHint(TeamKind kind) {
  if (OnGpu(kind)) return "no CUDA with NCCL was found (tools/cuda/README.md)";
  if (kind == TeamKind::kOneCcl) {
    return "install the Python packages oneccl and oneccl-devel, set CCL_ROOT "
           "to their environment, and build again";
  }
  return "its library is not installed (tools/setup.sh)";
}

// Checks that the program of the team's ranks was built. Error: kNotFound.
absl::Status CheckProgram(const TeamSetting& setting, TeamKind kind) {
  const std::string program = ProgramOf(setting, kind);
  if (access(program.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(program.substr(setting.folder.size() + 1),
                   " was not built: ", InstallHint(kind)));
}

// Returns the variables that let oneCCL's ranks on one host find each other
// without a launcher, and the settings that were fastest. With a core for each
// rank, the caller's thread does the work. If ranks share cores, that thread
// would keep other ranks from running. Then a worker thread does the work, and
// yields.
std::vector<std::pair<std::string, std::string>> OneCclEnvironment(
    bool share_cores, int32_t peer_algorithm) {
  std::vector<std::pair<std::string, std::string>> environment = {
      {"CCL_PROCESS_LAUNCHER", "none"},
      {"CCL_LOG_LEVEL", "error"},
      {"CCL_KVS_IFACE", "lo"},
      {"CCL_ATL_TRANSPORT", "ofi"},
      {"CCL_ATL_SHM", "1"},
      {"FI_PROVIDER", "tcp"},
      {"FI_TCP_IFACE", "lo"}};
  if (share_cores) {
    environment.insert(environment.end(), {{"CCL_WORKER_OFFLOAD", "1"},
                                           {"CCL_YIELD", "sched_yield"},
                                           {"CCL_SPIN_COUNT", "1"}});
  } else {
    environment.emplace_back("CCL_WORKER_OFFLOAD", "0");
  }
  if (peer_algorithm > 0) {
    const Subject subject = {.team = {TeamKind::kOneCcl},
                             .peer_algorithm = peer_algorithm};
    environment.emplace_back("CCL_ALLREDUCE", PeerAlgorithm(subject));
  }
  return environment;
}

}  // namespace

absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size) {
  const bool threads = team.kind == TeamKind::kThreads;
  if (team.kind == TeamKind::kUpdate) return RunUpdater(listener, world_size);
  if (team.kind == TeamKind::kExchange) {
    return RunExchange(listener, world_size);
  }
  if (!threads && team.kind != TeamKind::kProcesses &&
      team.kind != TeamKind::kTcp) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(team.kind), " ranks run in another program"));
  }
  GroupOptions options = {.algorithm = team.algorithm};
  return RunAsRanks(
      threads ? RankKind::kThreads : RankKind::kProcesses, world_size, options,
      [&](Communicator& group) { return ServeGroup(listener, group); });
}

TeamCommand CommandOf(const TeamSetting& setting, const Team& team,
                      int world_size, const std::string& listener,
                      int32_t peer_algorithm) {
  TeamCommand command;
  if (IsMpi(team.kind)) {
    command = MpirunCommand(world_size, setting.cores, setting.mpi_folder);
  }
  if (team.kind == TeamKind::kOpenMpi) {
    // The rank's program sets the algorithm, which needs this variable.
    command.environment.emplace_back("OMPI_MCA_coll_tuned_use_dynamic_rules",
                                     "1");
  }
  const bool own_ranks = IsMpi(team.kind) || team.kind == TeamKind::kThreads ||
                         IsControl(team.kind);
  command.nproc = own_ranks ? 1 : world_size;
  const bool share_cores = world_size > setting.cores;
  if (team.kind == TeamKind::kOneCcl) {
    command.environment = OneCclEnvironment(share_cores, peer_algorithm);
  }
  // mpirun binds its ranks too. Ranks whose library has its own thread, such as
  // Gloo's, are not bound: the rank and that thread would share one core.
  command.bind_cores = team.kind == TeamKind::kProcesses ||
                       (team.kind == TeamKind::kOneCcl && !share_cores);
  command.world_size = IsControl(team.kind) ? 1 : world_size;
  command.argv.push_back(ProgramOf(setting, team.kind));
  // A lower level that the user has set would write a log during timed calls.
  if (OnGpu(team.kind)) command.environment.emplace_back("NCCL_DEBUG", "WARN");
  if (team == Team{TeamKind::kPlainNccl, Algorithm::kRing}) {
    command.environment.emplace_back("NCCL_ALGO", "Ring");
  }
  switch (team.kind) {
    case TeamKind::kMpi:
      command.argv.insert(command.argv.end(), {listener, Name(team.algorithm)});
      break;
    case TeamKind::kOpenMpi:
      command.argv.push_back(listener);
      break;
    case TeamKind::kGloo:
      command.argv.insert(command.argv.end(), {listener, setting.store});
      break;
    case TeamKind::kOneCcl:
      command.argv.insert(
          command.argv.end(),
          {listener, absl::StrCat(setting.store, "/oneccl_", peer_algorithm)});
      break;
    case TeamKind::kNccl:
    case TeamKind::kPlainNccl:
      command.argv.insert(command.argv.end(),
                          {listener, Name(team.kind), Name(team.algorithm)});
      break;
    default:
      command.argv.insert(command.argv.end(),
                          {absl::StrCat("--worker=", listener),
                           absl::StrCat("--worker_kind=", Name(team.kind)),
                           absl::StrCat("--algorithm=", Name(team.algorithm)),
                           absl::StrCat("--world_size=", world_size)});
  }
  return command;
}

// Probes: NCCL's log is read before a team is measured.
namespace {

// The log files of all ranks, which are in one folder.
class LogReader {
 public:
  explicit LogReader(const std::string& folder) : folder_(folder) {}

  // Returns the lines that were added since the last call. Skips files that
  // cannot be read.
  std::string ReadNewLines() {
    std::string more;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_, error)) {
      const std::string path = entry.path().string();
      const absl::StatusOr<std::string> text = ReadFile(path);
      if (!text.ok()) continue;
      size_t& read = read_[path];
      // An unfinished line is left to the next call.
      const size_t end = text->rfind('\n') + 1;
      if (end > read) more += text->substr(read, end - read);
      read = std::max(read, end);
    }
    return more;
  }

 private:
  const std::string folder_;
  std::map<std::string, size_t> read_;  // The bytes read so far, by path.
};

// Makes one call of each kind and reads the log. NCCL logs nothing about sends
// and receives, so a team that uses them makes a single call. Ends without an
// error when a call does not fit in memory: the measurement reports that.
absl::Status ProbeCalls(const AllReduceSettings& settings,
                        absl::Duration timeout, RankTeam& ranks,
                        LogReader& logs, NcclProbe& probe) {
  for (const Operation operation : settings.collectives) {
    for (const int64_t bytes : SizesOf(settings, operation)) {
      for (const Subject& subject : SubjectsOf(settings)) {
        if (subject.team != probe.team) continue;
        TurnRequest request = RequestOf(settings, operation, bytes, subject);
        request.probe = 1;
        const absl::StatusOr<std::vector<AllReduceTurn>> turns =
            ranks.Ask<AllReduceTurn>(request, timeout);
        if (absl::IsResourceExhausted(turns.status())) return absl::OkStatus();
        LOCKSTEP_RETURN_IF_ERROR(turns.status());
        const std::string log = logs.ReadNewLines();
        ReadNcclFacts(log, probe.facts);
        probe.calls.push_back(
            {operation, bytes, subject.buffers, ReadNcclChoice(log)});
        const AllReduceTurn& first = turns->front();
        probe.gpu = first.gpu;
        probe.shared_gpu = first.shared_gpu != 0;
        probe.direct = first.direct != 0;
        // Adds variables that are set but that NCCL has not read.
        for (const std::string& variable : first.nccl_environment) {
          const std::pair<std::string, std::string> pair =
              absl::StrSplit(variable, absl::MaxSplits('=', 1));
          probe.facts.environment.insert(pair);
        }
        if (!IsPeer(probe.team.kind) &&
            probe.team.algorithm != Algorithm::kAuto) {
          return absl::OkStatus();
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NcclProbe> Probe(const AllReduceSettings& settings,
                                const TeamSetting& setting, const Team& team) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-nccl"));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<RankTeam> ranks,
      RankTeam::Start([&](const std::string& listener) {
        TeamCommand command =
            CommandOf(setting, team, settings.world_size, listener);
        for (auto& variable : NcclLogEnvironment(folder.path() + "/log")) {
          command.environment.push_back(std::move(variable));
        }
        return command;
      }));
  LOCKSTEP_RETURN_IF_ERROR(ranks->AwaitRanks(setting.timeout));
  NcclProbe probe = {.team = team};
  LogReader logs(folder.path());
  const absl::Status probed =
      ProbeCalls(settings, setting.timeout, *ranks, logs, probe);
  const absl::Status stopped = ranks->Stop(setting.timeout);
  LOCKSTEP_RETURN_IF_ERROR(probed);
  // The ranks may have ended because a call did not fit in memory.
  if (!probe.calls.empty() || stopped.ok()) return probe;
  return stopped;
}

}  // namespace

absl::StatusOr<AllReduceTurn> CombineTurns(
    const std::vector<AllReduceTurn>& ranks) {
  AllReduceTurn all = ranks.front();
  std::vector<TimedCalls> calls;
  for (const AllReduceTurn& rank : ranks) {
    calls.push_back(rank.calls);
    all.host_seconds = std::max(all.host_seconds, rank.host_seconds);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(all.calls, SlowestOf(calls));
  return all;
}

absl::StatusOr<std::unique_ptr<AllReduceTeams>> AllReduceTeams::Start(
    const AllReduceSettings& settings, TeamSetting setting,
    std::vector<MissingPeer>& missing) {
  std::unique_ptr<AllReduceTeams> all(new AllReduceTeams(setting.timeout));
  const std::vector<Team> teams = TeamsOf(settings);
  if (std::ranges::any_of(teams, IsMpi, &Team::kind)) {
    all->mpi_folder_ = CreateMpiFolder(settings.world_size);
    if (all->mpi_folder_.ok()) setting.mpi_folder = all->mpi_folder_->path();
  }
  const auto start_ranks = [&](const Team& team,
                               int32_t algorithm) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<RankTeam> ranks,
                              RankTeam::Start([&](const std::string& listener) {
                                return CommandOf(setting, team,
                                                 settings.world_size, listener,
                                                 algorithm);
                              }));
    LOCKSTEP_RETURN_IF_ERROR(ranks->AwaitRanks(setting.timeout));
    all->teams_.emplace_back(team, algorithm, std::move(ranks));
    return absl::OkStatus();
  };
  const auto start = [&](const Team& team) -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckProgram(setting, team.kind));
    if (IsMpi(team.kind)) {
      LOCKSTEP_RETURN_IF_ERROR(all->mpi_folder_.status());
    }
    if (OnGpu(team.kind)) {
      LOCKSTEP_ASSIGN_OR_RETURN(NcclProbe probe,
                                Probe(settings, setting, team));
      all->probes_.push_back(std::move(probe));
    }
    const size_t groups =
        StartsPerAlgorithm(team.kind) ? PeerAlgorithms(team.kind).size() : 1;
    for (size_t i = 0; i < groups; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(start_ranks(team, static_cast<int32_t>(i)));
    }
    return absl::OkStatus();
  };
  for (const Team& team : teams) {
    const absl::Status status = start(team);
    if (status.ok()) continue;
    // A peer whose ranks have another world size makes the comparison wrong. A
    // peer that does not start is only missing.
    if (!IsPeer(team.kind) || absl::IsFailedPrecondition(status)) {
      return Named(Name(team), status);
    }
    // Ranks of some of the peer's algorithms may have started.
    std::erase_if(all->teams_,
                  [&](const RunningTeam& each) { return each.team == team; });
    missing.push_back({team, std::string(status.message())});
  }
  return all;
}

bool AllReduceTeams::Has(const Team& team) const {
  return std::ranges::count(teams_, team, &RunningTeam::team) > 0;
}

absl::StatusOr<AllReduceTurn> AllReduceTeams::TakeTurn(
    const Team& team, const TurnRequest& request) {
  const auto found = std::ranges::find_if(teams_, [&](const RunningTeam& each) {
    return each.team == team && each.ServesRequest(request);
  });
  if (found == teams_.end())
    return absl::NotFoundError("the team was not started");
  const absl::StatusOr<std::vector<AllReduceTurn>> ranks =
      found->ranks->Ask<AllReduceTurn>(request, timeout_);
  if (ranks.ok()) return CombineTurns(*ranks);
  // The team may still be busy, and would slow down the next team.
  found->ranks->Stop(absl::ZeroDuration()).IgnoreError();
  teams_.erase(found);
  return ranks.status();
}

absl::Status AllReduceTeams::Stop() {
  absl::Status first;
  for (const auto& [team, algorithm, ranks] : teams_) {
    const absl::Status status = ranks->Stop(timeout_);
    if (!IsPeer(team.kind) && !status.ok())
      first.Update(Named(Name(team), status));
  }
  teams_.clear();
  return first;
}

}  // namespace lockstep::benchmarks
