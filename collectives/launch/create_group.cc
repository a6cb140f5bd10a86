#include "collectives/launch/create_group.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/tcp_rendezvous.h"

namespace lockstep {
namespace {

// The variables that the process started with; none if it is another user's.
std::set<std::string> EnvironmentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return absl::StrSplit(text, '\0', absl::SkipEmpty());
}

// How one launcher's runs are told apart.
struct RunMarks {
  absl::string_view name;  // For the folder.
  std::vector<absl::string_view> variables;
  bool all_needed = false;   // Else those that are not set do not count.
  bool one_process = false;  // It started all ranks of this host.
  std::vector<absl::string_view> rank_variables = {};
};

RunMarks MarksOf(RankLauncher launcher) {
  switch (launcher) {
    case RankLauncher::kTorchrun:
      return {.name = "torchrun",
              .variables = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                            "MASTER_ADDR", "MASTER_PORT"},
              .one_process = true,
              .rank_variables = {"RANK", "TORCHELASTIC_RUN_ID", "MASTER_PORT"}};
    case RankLauncher::kOpenMpi:
      return {.name = "mpirun",
              .variables = {"PMIX_NAMESPACE"},
              .one_process = true,
              .rank_variables = {"OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"}};
    case RankLauncher::kMpich:
      return {.name = "mpirun",
              .variables = {"PMI_SIZE"},
              .one_process = true,
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

// FNV-1a: the same in every process, and as good as unique among the runs that
// one user has at one time.
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

absl::StatusOr<std::string> FolderOfRun(const RankEnvironment& environment,
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
  if (marks.one_process) {
    absl::StrAppend(&run, launcher.pid, " ", launcher.start_ticks);
  }
  const std::string temporary = lookup("TMPDIR").value_or("");
  return absl::StrCat(temporary.empty() ? "/tmp" : temporary, "/lockstep-",
                      geteuid(), "-", marks.name, "-",
                      absl::Hex(Hash(run), absl::kZeroPad16));
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

absl::Status NeedsPort(const RankEnvironment& environment) {
  return absl::InvalidArgumentError(absl::StrCat(
      "of ", environment.world_size, " ranks only ",
      environment.local_world_size,
      " are on this host: set MASTER_ADDR to the "
      "host of rank 0 and MASTER_PORT to a free port there, for all ranks"));
}

absl::StatusOr<MeetingPlace> PortOfRun(const RankEnvironment& environment,
                                       EnvironmentLookup lookup) {
  constexpr absl::string_view kOwnPort = "LOCKSTEP_MASTER_PORT";
  constexpr absl::string_view kPort = "MASTER_PORT";
  const bool one_host = environment.local_world_size == environment.world_size;
  const bool own = lookup(kOwnPort).has_value();
  if ((!one_host && !lookup("MASTER_ADDR").has_value()) ||
      (!own && !lookup(kPort).has_value())) {
    return NeedsPort(environment);
  }
  MeetingPlace place;
  place.address = lookup("MASTER_ADDR").value_or("127.0.0.1");
  LOCKSTEP_ASSIGN_OR_RETURN(place.port,
                            ReadPort(lookup, own ? kOwnPort : kPort));
  if (!own && environment.launcher == RankLauncher::kTorchrun) ++place.port;
  place.listen_address = lookup("LOCKSTEP_LISTEN_ADDRESS").value_or("");
  place.token = lookup("LOCKSTEP_TOKEN").value_or("");
  return place;
}

// Of several ranks that come and go at once, one may remove the folder, or the
// file, before another one is in.
constexpr int kAttempts = 100;

struct FileInFolder {
  TemporaryFolder folder;
  std::unique_ptr<Rendezvous> file;  // Ends before the folder.
};

absl::StatusOr<FileInFolder> OpenInFolder(const std::string& path,
                                          FileRendezvousOptions options) {
  options.path = absl::StrCat(path, "/rendezvous");
  absl::Status failure;
  for (int i = 0; i < kAttempts; ++i) {
    absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::OpenShared(path);
    if (!folder.ok()) return folder.status();
    absl::StatusOr<std::unique_ptr<Rendezvous>> file =
        OpenFileRendezvous(options);
    if (file.ok()) return FileInFolder{*std::move(folder), *std::move(file)};
    failure = file.status();
    if (!absl::IsNotFound(failure)) break;
  }
  return failure;
}

// A file rendezvous in a folder that goes with it.
class FolderRendezvous : public Rendezvous {
 public:
  FolderRendezvous(FileInFolder place, std::string path,
                   FileRendezvousOptions options)
      : place_(std::move(place)),
        path_(std::move(path)),
        options_(std::move(options)) {}

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    absl::StatusOr<std::vector<std::string>> blobs =
        place_.file->Exchange(blob);
    // Only who has not come yet can miss the file.
    for (int i = 0; i < kAttempts && !came_ && absl::IsNotFound(blobs.status());
         ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(place_, OpenInFolder(path_, options_));
      blobs = place_.file->Exchange(blob);
    }
    came_ = true;
    return blobs;
  }

 private:
  FileInFolder place_;
  const std::string path_;
  const FileRendezvousOptions options_;
  bool came_ = false;  // Has exchanged, or failed to.
};

absl::StatusOr<std::unique_ptr<Rendezvous>> MeetInFolder(
    const std::string& path, const FileRendezvousOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(FileInFolder place, OpenInFolder(path, options));
  return std::make_unique<FolderRendezvous>(std::move(place), path, options);
}

ProcessIdentity LauncherOf(const RankEnvironment& environment) {
  const RunMarks marks = MarksOf(environment.launcher);
  if (!marks.one_process) return {};
  return FindLauncherProcess(marks.rank_variables);
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
                     "': must be threads, processes, mpi or nccl"));
  }
  return absl::UnimplementedError(absl::StrCat(
      "backend ", backend, ": this program was not linked with //collectives/",
      backend, ":", backend, "_group"));
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinGroup(
    absl::string_view backend, const GroupOptions& options) {
  if (backend == "processes") {
    LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                              RequireRankEnvironment());
    return JoinLaunchedGroup(environment, options);
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
    const char* value = std::getenv(std::string(name).c_str());
    if (value != nullptr) mine.push_back(absl::StrCat(name, "=", value));
  }
  pid_t pid = getppid();
  while (true) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.has_value()) return {.pid = pid};
    const std::set<std::string> environment = EnvironmentOf(pid);
    const bool is_of_this_rank =
        !mine.empty() &&
        std::all_of(mine.begin(), mine.end(), [&](const std::string& entry) {
          return environment.contains(entry);
        });
    if (!is_of_this_rank || stat->parent == 0) {
      return {.pid = pid, .start_ticks = stat->start_ticks};
    }
    pid = stat->parent;
  }
}

absl::StatusOr<MeetingPlace> ChooseMeetingPlace(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher) {
  if (!environment.rendezvous.empty()) {
    return MeetingPlace{.file = environment.rendezvous};
  }
  if (lookup("LOCKSTEP_MASTER_PORT").has_value() ||
      environment.local_world_size != environment.world_size) {
    return PortOfRun(environment, lookup);
  }
  MeetingPlace place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.folder,
                            FolderOfRun(environment, lookup, launcher));
  return place;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> OpenLaunchedRendezvous(
    const RankEnvironment& environment, absl::Duration timeout) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const MeetingPlace place,
      ChooseMeetingPlace(environment, LookUpProcessEnvironment,
                         LauncherOf(environment)));
  const FileRendezvousOptions file = {.path = place.file,
                                      .rank = environment.rank,
                                      .world_size = environment.world_size,
                                      .timeout = timeout};
  if (!place.file.empty()) return OpenFileRendezvous(file);
  if (!place.folder.empty()) return MeetInFolder(place.folder, file);
  return TcpRendezvous::Open({.address = place.address,
                              .port = place.port,
                              .token = place.token,
                              .listen_address = place.listen_address,
                              .rank = environment.rank,
                              .world_size = environment.world_size,
                              .timeout = timeout});
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options) {
  if (environment.local_world_size != environment.world_size) {
    return absl::UnimplementedError(absl::StrCat(
        "of ", environment.world_size, " ranks only ",
        environment.local_world_size,
        " are on this host, and shared memory ends there: use the mpi or the "
        "nccl backend for several hosts"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Rendezvous> rendezvous,
      OpenLaunchedRendezvous(environment, options.timeout));
  return JoinProcessGroup(*rendezvous, options);
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
