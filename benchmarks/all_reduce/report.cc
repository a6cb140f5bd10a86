#include "benchmarks/all_reduce/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

// Copies as many bytes as the buffers of `world_size` ranks have.
absl::Status RunCopier(const std::string& listener, int world_size) {
  const int threads = std::min(world_size, UsableCores());
  return ServeTurns<TurnRequest>(
      listener, {0, 1}, [&](const TurnRequest& request) {
        const int64_t bytes = request.count * SizeOf(request.type) *
                              world_size * (request.in_place ? 1 : 2);
        return TimeCopies(threads, bytes, request.warmup, request.iterations);
      });
}

// Open MPI puts sockets under TMPDIR, whose paths may have 107 characters.
constexpr size_t kLongTmpdir = 40;

// Names the folder of the memory that Open MPI's ranks share.
constexpr char kMpiMemory[] = "OMPI_MCA_btl_vader_backing_directory";

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
    default:
      return setting.folder + "/allreduce";
  }
}

TeamCommand MpiCommand(const TeamSetting& setting, int world_size) {
  TeamCommand command = {
      .argv = {"mpirun", "--oversubscribe", "-np", absl::StrCat(world_size)}};
  if (geteuid() == 0) command.argv.push_back("--allow-run-as-root");
  const char* const tmpdir = std::getenv("TMPDIR");
  std::string folder = tmpdir == nullptr ? "" : tmpdir;
  if (!setting.mpi_folder.empty()) {
    command.environment.emplace_back(kMpiMemory, setting.mpi_folder);
    folder = setting.mpi_folder;
  }
  if (folder.size() > kLongTmpdir) folder = "/tmp";
  if (!folder.empty()) command.environment.emplace_back("TMPDIR", folder);
  if (world_size > setting.cores) {
    command.environment.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  }
  return command;
}

// nullopt if there can be none: Open MPI then finds a place by itself.
std::optional<TemporaryFolder> CreateMpiFolder() {
  const char* const below = std::getenv(kMpiMemory);
  absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create(
      "allreduce", below == nullptr ? "/dev/shm" : below);
  if (!folder.ok()) return std::nullopt;
  return *std::move(folder);
}

// Why a team cannot be started, if that can be seen beforehand.
absl::Status CheckProgram(const TeamSetting& setting, TeamKind kind) {
  const std::string program = ProgramOf(setting, kind);
  if (access(program.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      program.substr(setting.folder.size() + 1),
      " was not built: its library is not installed (tools/setup.sh)"));
}

}  // namespace

absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size) {
  const bool threads = team.kind == TeamKind::kThreads;
  if (team.kind == TeamKind::kCopy) return RunCopier(listener, world_size);
  if (!threads && team.kind != TeamKind::kProcesses) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(team.kind), " ranks run in another program"));
  }
  GroupOptions options = {.algorithm = team.algorithm};
  return RunAsRanks(
      threads ? RankKind::kThreads : RankKind::kProcesses, world_size, options,
      [&](Communicator& group) { return ServeGroup(listener, group); });
}

TeamCommand CommandOf(const TeamSetting& setting, const Team& team,
                      int world_size, const std::string& listener) {
  TeamCommand command;
  if (IsMpi(team.kind)) command = MpiCommand(setting, world_size);
  const bool own_ranks = IsMpi(team.kind) || team.kind == TeamKind::kThreads ||
                         team.kind == TeamKind::kCopy;
  command.nproc = own_ranks ? 1 : world_size;
  // As mpirun does. Not Gloo's, which would share the core with its own thread.
  command.bind_cores =
      team.kind == TeamKind::kProcesses && world_size <= setting.cores;
  command.world_size = team.kind == TeamKind::kCopy ? 1 : world_size;
  command.argv.push_back(ProgramOf(setting, team.kind));
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
    default:
      command.argv.insert(command.argv.end(),
                          {absl::StrCat("--worker=", listener),
                           absl::StrCat("--worker_kind=", Name(team.kind)),
                           absl::StrCat("--algorithm=", Name(team.algorithm)),
                           absl::StrCat("--world_size=", world_size)});
  }
  return command;
}

absl::StatusOr<std::unique_ptr<AllReduceTeams>> AllReduceTeams::Start(
    const AllReduceSettings& settings, TeamSetting setting,
    std::vector<MissingPeer>& missing) {
  std::unique_ptr<AllReduceTeams> all(new AllReduceTeams(setting.timeout));
  const std::vector<Team> teams = TeamsOf(settings);
  if (std::ranges::any_of(teams, IsMpi, &Team::kind)) {
    all->mpi_folder_ = CreateMpiFolder();
    if (all->mpi_folder_) setting.mpi_folder = all->mpi_folder_->path();
  }
  const auto start = [&](const Team& team) -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckProgram(setting, team.kind));
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<RankTeam> ranks,
                              RankTeam::Start([&](const std::string& listener) {
                                return CommandOf(setting, team,
                                                 settings.world_size, listener);
                              }));
    LOCKSTEP_RETURN_IF_ERROR(ranks->AwaitRanks(setting.timeout));
    all->teams_.emplace_back(team, std::move(ranks));
    return absl::OkStatus();
  };
  for (const Team& team : teams) {
    const absl::Status status = start(team);
    if (status.ok()) continue;
    // A peer in a world of another size is a wrong comparison, not a missing
    // one.
    if (!IsPeer(team.kind) || absl::IsFailedPrecondition(status)) {
      return Named(Name(team.kind), status);
    }
    missing.push_back({team.kind, std::string(status.message())});
  }
  return all;
}

absl::StatusOr<TimedCalls> AllReduceTeams::TakeTurn(
    const Team& team, const TurnRequest& request) {
  const auto found =
      std::find_if(teams_.begin(), teams_.end(),
                   [&](const auto& each) { return each.first == team; });
  if (found == teams_.end()) return absl::NotFoundError("no such team");
  const absl::StatusOr<std::vector<TimedCalls>> ranks =
      found->second->Ask<TimedCalls>(request, timeout_);
  if (ranks.ok()) return SlowestOf(*ranks);
  // It may still be busy, and would take time from whom is measured next.
  found->second->Stop(absl::ZeroDuration()).IgnoreError();
  teams_.erase(found);
  return ranks.status();
}

absl::Status AllReduceTeams::Stop() {
  absl::Status first;
  for (const auto& [team, ranks] : teams_) {
    const absl::Status status = ranks->Stop(timeout_);
    if (!IsPeer(team.kind) && !status.ok())
      first.Update(Named(Name(team.kind), status));
  }
  teams_.clear();
  return first;
}

// The order of turns.
namespace {

TurnRequest RequestOf(const AllReduceSettings& settings, int64_t bytes,
                      const Subject& subject, int round) {
  const int iterations = TimedIterations(settings, bytes);
  return {.type = settings.type,
          .op = settings.op,
          .buffers = subject.buffers,
          .in_place = settings.in_place,
          .count = bytes / SizeOf(settings.type),
          .warmup = WarmupIterations(settings, bytes, round),
          .iterations = iterations,
          .first = int64_t{round} * iterations};
}

// Adds one turn to what was measured.
absl::Status AddTurn(const AllReduceSettings& settings, int64_t bytes,
                     int round, const TakeTurnFunction& take_turn,
                     AllReduceRow& measured) {
  const Subject& subject = measured.subject;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TimedCalls calls,
      take_turn(subject.team, RequestOf(settings, bytes, subject, round)));
  measured.wrong += calls.wrong;
  measured.seconds.insert(measured.seconds.end(), calls.seconds.begin(),
                          calls.seconds.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AllReduceSize> MeasureSize(const AllReduceSettings& settings,
                                          int64_t bytes,
                                          const TakeTurnFunction& take_turn,
                                          const ClockFunction& clock,
                                          std::vector<Subject>& subjects,
                                          std::vector<MissingPeer>& missing) {
  AllReduceSize measured = {.bytes = bytes};
  for (const Subject& subject : subjects) {
    measured.rows.push_back({.subject = subject});
  }
  const auto is_gone = [&](const AllReduceRow& row) {
    return std::ranges::count(subjects, row.subject) == 0;
  };
  const RoundLimits limits = {
      .rounds = settings.rounds,
      .seconds = settings.seconds / static_cast<double>(settings.sizes.size())};
  LOCKSTEP_ASSIGN_OR_RETURN(
      measured.rounds,
      MeasureRounds(limits, subjects.size(), clock,
                    [&](int round, size_t next) {
                      AllReduceRow& row = measured.rows[next];
                      if (is_gone(row)) return absl::OkStatus();
                      const absl::Status status =
                          AddTurn(settings, bytes, round, take_turn, row);
                      const TeamKind kind = row.subject.team.kind;
                      if (status.ok()) return status;
                      if (!IsPeer(kind))
                        return Named(Name(row.subject), status);
                      missing.push_back({kind, std::string(status.message())});
                      std::erase(subjects, row.subject);
                      return absl::OkStatus();
                    }));
  std::erase_if(measured.rows, is_gone);
  return measured;
}

// Numbers from samples.
namespace {

void DeriveRow(const AllReduceSettings& settings, int64_t bytes,
               AllReduceRow& row) {
  row.p50 = Median(row.seconds);
  row.p95 = Percentile(row.seconds, 95);
  row.p99 = Percentile(row.seconds, 99);
  row.mean = Mean(row.seconds);
  row.min = std::ranges::min(row.seconds);
  row.max = std::ranges::max(row.seconds);
  const double ranks = settings.world_size;
  row.alg_bw = static_cast<double>(bytes) / row.p50;
  row.bus_bw = row.alg_bw * 2 * (ranks - 1) / ranks;
}

// The copies went over as much memory as the buffers of the ranks have: P
// messages in place, else 2 P.
double CopyBandwidth(const AllReduceSettings& settings, int64_t bytes,
                     const AllReduceRow& copy) {
  const double moved = static_cast<double>(bytes) * settings.world_size *
                       (settings.in_place ? 1 : 2);
  return moved / Median(copy.seconds);
}

void AddRatios(std::vector<AllReduceRow>& rows) {
  for (AllReduceRow& row : rows) {
    if (IsPeer(row.subject.team.kind)) continue;
    for (const AllReduceRow& peer : rows) {
      const TeamKind kind = peer.subject.team.kind;
      if (IsPeer(kind)) row.ratios.push_back({kind, peer.p50 / row.p50});
    }
  }
}

}  // namespace

AllReduceSize DeriveSize(const AllReduceSettings& settings,
                         AllReduceSize size) {
  size.count = size.bytes / SizeOf(settings.type);
  std::erase_if(size.rows, [&](const AllReduceRow& row) {
    if (row.subject.team.kind != TeamKind::kCopy) return false;
    size.copy_bw = CopyBandwidth(settings, size.bytes, row);
    size.copy_wrong = row.wrong;
    return true;
  });
  for (AllReduceRow& row : size.rows) DeriveRow(settings, size.bytes, row);
  if (settings.world_size > 1 && size.bytes >= kBoundFrom) {
    size.bound_seconds = 2 * static_cast<double>(settings.world_size) *
                         static_cast<double>(size.bytes) / size.copy_bw;
    for (AllReduceRow& row : size.rows) {
      row.bound_fraction = *size.bound_seconds / row.p50;
    }
  }
  AddRatios(size.rows);
  return size;
}

int64_t CountWrong(const AllReduceReport& report) {
  int64_t wrong = 0;
  for (const AllReduceSize& size : report.sizes) {
    wrong += size.copy_wrong;
    for (const AllReduceRow& row : size.rows) wrong += row.wrong;
  }
  return wrong;
}

}  // namespace lockstep::benchmarks
