#include "benchmarks/scaling/teams.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/scaling/rank.h"
#include "benchmarks/scaling/turn.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/torch_peer_py.h"
#include "benchmarks/step/turn.h"
#include "collectives/communicator.h"
#include "collectives/groups/rank_environment.h"
#include "models/data/load_dataset.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"

namespace lockstep::benchmarks {
namespace {

// The time for ranks to load the data and join the group, and the time for
// ranks to end.
constexpr absl::Duration kStartTimeout = absl::Minutes(5);
constexpr absl::Duration kStopTimeout = absl::Minutes(1);

// Returns the rank's number among the ranks of its host.
absl::StatusOr<int> LocalRank(RankKind ranks,
                              const Communicator& communicator) {
  if (ranks == RankKind::kThreads || ranks == RankKind::kMpi) {
    return communicator.rank();  // All ranks are on this host.
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  return environment.local_rank;
}

}  // namespace

absl::StatusOr<std::string> ProgramOf(RankKind ranks) {
  if (ranks != RankKind::kMpi) return OwnProgramPath();
  const std::string program =
      std::filesystem::path(OwnProgramPath()).replace_filename("scaling_mpi");
  if (access(program.c_str(), X_OK) == 0) return program;
  return FlagError("backend", "mpi",
                   "scaling_mpi was not built: Open MPI is not installed "
                   "(tools/setup.sh)");
}

TeamCommand CommandOf(const RankLaunchSettings& setting, const RunSpec& spec,
                      const std::string& program, const std::string& listener) {
  const int world_size = spec.configuration.world_size;
  const RankKind ranks = spec.configuration.ranks;
  TeamCommand command;
  if (ranks == RankKind::kMpi) {
    command = MpirunCommand(world_size, setting.cores, setting.mpi_folder);
    // The ranks of the other backends are not bound either. A rank that is
    // bound to one core shares the core with its communication thread.
    command.argv.insert(command.argv.end(), {"--bind-to", "none"});
  }
  const bool one = ranks == RankKind::kThreads || ranks == RankKind::kMpi;
  command.nproc = one ? 1 : world_size;
  command.world_size = world_size;
  command.environment.emplace_back("OMP_NUM_THREADS", "1");
  command.argv.push_back(program);
  command.argv.insert(command.argv.end(), setting.flags.begin(),
                      setting.flags.end());
  command.argv.insert(command.argv.end(),
                      {absl::StrCat("--worker=", listener),
                       absl::StrCat("--backend=", Name(ranks)),
                       absl::StrCat("--world_sizes=", world_size)});
  return command;
}

absl::StatusOr<RoundSample> RunOnce(const RankLaunchSettings& setting,
                                    const RunSpec& spec) {
  if (spec.configuration.ranks == RankKind::kDdp) {
    return RunDdpOnce(setting, spec);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string program,
                            ProgramOf(spec.configuration.ranks));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<RankTeam> team,
                            RankTeam::Start([&](const std::string& listener) {
                              return CommandOf(setting, spec, program,
                                               listener);
                            }));
  LOCKSTEP_RETURN_IF_ERROR(team->AwaitRanks(kStartTimeout));
  // The call has no deadline, because the length of a step is not known. If
  // ranks hang, their own group times out.
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<RankResult> results,
      team->Ask<RankResult>(spec, absl::InfiniteDuration()));
  LOCKSTEP_RETURN_IF_ERROR(team->Stop(kStopTimeout));
  return CombineRanks(spec, results);
}

absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const DataFlags& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts,
                            LoadDataset(data.dataset, data.dir, data.options));
  const auto serve = [&](Communicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const int local_rank,
                              LocalRank(ranks, communicator));
    return ServeTurns<RunSpec>(
        listener, {communicator.rank(), communicator.world_size()},
        [&](const RunSpec& spec) {
          return RunRank(communicator, local_rank, *parts.train, data, spec);
        });
  };
  return RunAsRanks(ranks, world_size, GroupOptions(), serve);
}

// PyTorch's DistributedDataParallel as a peer. Each rank is a Python process
// with one thread, and all ranks train the same network.
namespace {

constexpr absl::Duration kRunTimeout = absl::Hours(24);

absl::StatusOr<TorchProcess> StartPython(const RankLaunchSettings& setting) {
  return TorchProcess::Start(setting.pythons, StepPeerTorch(),
                             absl::Now() + kStartTimeout);
}

// Sends each process its line, then returns the answers.
absl::StatusOr<std::vector<std::vector<double>>> AskAll(
    std::vector<TorchProcess>& processes, const std::vector<std::string>& lines,
    const char* word, size_t fewest) {
  for (size_t i = 0; i < processes.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(processes[i].Tell(lines[i]));
  }
  std::vector<std::vector<double>> answers;
  for (TorchProcess& process : processes) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                              process.Answer(absl::Now() + kRunTimeout));
    absl::StatusOr<std::vector<double>> numbers =
        ParseNumbers(answer, word, fewest);
    if (!numbers.ok()) {
      return Named(absl::StrCat("ddp: rank ", answers.size()),
                   numbers.status());
    }
    answers.push_back(*std::move(numbers));
  }
  return answers;
}

// Converts the answer of a rank: whether its parameters equal rank 0's, the
// loss, and the seconds of each step. The parts of a step are not known.
RankResult ResultOf(const RunSpec& spec, int rank,
                    std::span<const double> answer) {
  RankResult result = {.rank = rank,
                       .world_size = spec.configuration.world_size,
                       .same_parameters = answer[0] == 1,
                       .loss = answer[1]};
  for (const double seconds : answer.subspan(2 + spec.warmup_steps)) {
    result.steps.push_back({.seconds = seconds, .cpu_seconds = seconds});
  }
  return result;
}

}  // namespace

absl::StatusOr<std::string> CheckDdp(const RankLaunchSettings& setting,
                                     const Network& network) {
  if (DrawsMasks(network)) {
    return FlagError(
        "peers", "torch",
        "--model has dropout, whose masks PyTorch draws otherwise");
  }
  const absl::StatusOr<TorchProcess> process = StartPython(setting);
  if (process.ok()) return process->name();
  return FlagError("peers", "torch", process.status().message());
}

absl::StatusOr<RoundSample> RunDdpOnce(const RankLaunchSettings& setting,
                                       const RunSpec& spec) {
  const int world_size = spec.configuration.world_size;
  const int64_t global_batch = spec.configuration.global_batch;
  const DataType type = spec.configuration.type;
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            CreateNetwork(spec.model, setting.input));
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-ddp"));
  LOCKSTEP_RETURN_IF_ERROR(
      WriteStepFiles(network,
                     {.spec = spec.model,
                      .batch = (global_batch + world_size - 1) / world_size,
                      .input = setting.input},
                     /*seed=*/0, folder.path()));
  std::vector<TorchProcess> ranks;
  std::vector<std::string> loads, steps;
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(TorchProcess process, StartPython(setting));
    ranks.push_back(std::move(process));
    loads.push_back(
        absl::StrCat("load 1 ", Name(type), " eager nhwc cpu ", folder.path()));
    const int64_t images =
        global_batch / world_size + (rank < global_batch % world_size);
    steps.push_back(absl::StrCat("ddp ", rank, " ", world_size, " ",
                                 spec.learning_rate, " ", images, " ",
                                 spec.warmup_steps + spec.steps));
  }
  LOCKSTEP_RETURN_IF_ERROR(AskAll(ranks, loads, "loaded", 0).status());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::vector<double>> answers,
      AskAll(ranks, steps, "stepped", 2 + spec.warmup_steps));
  std::vector<RankResult> results;
  for (int rank = 0; rank < world_size; ++rank) {
    results.push_back(ResultOf(spec, rank, answers[rank]));
  }
  return CombineRanks(spec, results);
}

}  // namespace lockstep::benchmarks
