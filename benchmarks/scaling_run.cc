// Launch and collect; join and report.
#include "benchmarks/scaling_run.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "benchmarks/scaling_rank.h"
#include "collectives/communicator.h"
#include "collectives/host/process_group.h"
#include "collectives/host/thread_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "models/data/fashion_mnist.h"
#include "models/file_io.h"

namespace lockstep {
namespace {

std::string ResultPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank_", rank);
}

absl::StatusOr<std::string> MakeTemporaryFolder() {
  const char* parent = std::getenv("TMPDIR");
  std::string folder =
      absl::StrCat(parent != nullptr && *parent != '\0' ? parent : "/tmp",
                   "/lockstep-scaling-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", folder));
  }
  return folder;
}

absl::StatusOr<std::vector<RankResult>> ReadResults(const std::string& folder,
                                                    int world_size) {
  std::vector<RankResult> results;
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                              ReadFile(ResultPath(folder, rank)));
    LOCKSTEP_ASSIGN_OR_RETURN(RankResult result, ParseRankResult(text));
    results.push_back(std::move(result));
  }
  return results;
}

absl::Status RunAndWrite(Communicator& communicator, const Dataset& train,
                         const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankResult result,
                            RunRank(communicator, train, spec));
  return ReplaceFile(ResultPath(folder, communicator.rank()),
                     SerializeRankResult(result));
}

absl::Status RunProcess(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a worker needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenFileRendezvous({.path = environment->rendezvous,
                          .rank = environment->rank,
                          .world_size = environment->world_size}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinProcessGroup(*rendezvous));
  return RunAndWrite(*communicator, train, spec, folder);
}

// The first error that is not another rank's departure, if there is one.
absl::Status FirstCause(const std::vector<absl::Status>& statuses) {
  absl::Status cause;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (cause.ok() || absl::IsUnavailable(cause)) cause = status;
  }
  return cause;
}

absl::Status RunThreads(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Communicator>> communicators,
      CreateThreadGroup(spec.configuration.world_size));
  std::vector<absl::Status> statuses(communicators.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < communicators.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = RunAndWrite(*communicators[rank], train, spec, folder);
      communicators[rank].reset();  // Tells the others if this one failed.
    });
  }
  for (std::thread& thread : threads) thread.join();
  return FirstCause(statuses);
}

}  // namespace

absl::StatusOr<RoundSample> RunOnce(
    const RunSpec& spec,
    const std::function<std::vector<std::string>(const std::string& folder)>&
        worker) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string folder, MakeTemporaryFolder());
  const absl::Cleanup remove_folder = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  const int world_size = spec.configuration.world_size;
  LaunchOptions options;
  options.nproc = spec.ranks == RankKind::kProcesses ? world_size : 1;
  options.argv = worker(folder);
  options.environment = {{"OMP_NUM_THREADS", "1"}};
  LOCKSTEP_ASSIGN_OR_RETURN(const LaunchSummary summary, Launch(options));
  if (summary.received_signal != 0) {
    return absl::CancelledError(absl::StrCat(
        "ended by signal ", FormatSignal(summary.received_signal)));
  }
  if (ExitStatus(summary) != 0) {
    const std::string cause = FormatSummary(summary);
    return absl::AbortedError(absl::StripPrefix(cause, "lockstep: "));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankResult> results,
                            ReadResults(folder, world_size));
  return CombineRanks(spec, results);
}

absl::Status RunWorker(const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(spec.data_dir));
  return spec.ranks == RankKind::kProcesses
             ? RunProcess(data.train, spec, folder)
             : RunThreads(data.train, spec, folder);
}

}  // namespace lockstep
