// PyTorch's DistributedDataParallel as a peer. Each rank is a Python process
// with one thread, and all ranks train the same network.
#include <algorithm>
#include <cstdint>
#include <optional>
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
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/step/step.h"
#include "benchmarks/step/torch_peer_py.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {
namespace {

constexpr absl::Duration kStartTimeout = absl::Minutes(5);
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
                      .input = setting.input,
                      .type = type},
                     /*seed=*/0, folder.path()));
  std::vector<TorchProcess> ranks;
  std::vector<std::string> loads, steps;
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(TorchProcess process, StartPython(setting));
    ranks.push_back(std::move(process));
    loads.push_back(
        absl::StrCat("load 1 ", Name(type), " eager nhwc ", folder.path()));
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
