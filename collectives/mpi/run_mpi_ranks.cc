// Runs mpirun on this test binary. The ranks write their results to files.
#include "collectives/mpi/run_mpi_ranks.h"

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "collectives/communicator.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Result = absl::StatusOr<std::string>;
using Function = std::function<Result(Communicator&)>;

// The environment variables that tell the ranks which call to run.
constexpr char kFolderVariable[] = "LOCKSTEP_MPI_TEST_FOLDER";
constexpr char kCallVariable[] = "LOCKSTEP_MPI_TEST_CALL";

// The time that mpirun has to end after its SIGTERM.
constexpr absl::Duration kMpirunPatience = absl::Seconds(5);

// The files of one call: each rank's process number and result.
struct Files {
  std::string pid(int rank) const {
    return absl::StrCat(folder, "/pid.", rank);
  }
  std::string result(int rank) const {
    return absl::StrCat(folder, "/result.", rank);
  }

  std::string folder;
};

// Writes a file atomically: it is complete or does not exist.
void WriteFile(const std::string& path, const std::string& bytes) {
  const std::string part = path + ".part";
  std::ofstream(part, std::ios::binary) << bytes;
  std::rename(part.c_str(), path.c_str());
}

// Returns nullopt without a result.
std::optional<Result> ReadResult(const std::string& path) {
  const std::string bytes = ReadFile(path).value_or("");
  if (bytes.empty()) return std::nullopt;
  return ParseResult(bytes);
}

std::string RunningTest() {
  const testing::TestInfo* const info =
      testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(info->test_suite_name(), ".", info->name());
}

// Returns the number of calls that the test has made before this one.
size_t EarlierCalls(const std::string& test) {
  static auto* const last = new std::pair<std::string, size_t>;
  *last = {test, last->first == test ? last->second + 1 : 0};
  return last->second;
}

Result RunFunction(const Function& fn, const RunRanksOptions& options) {
  auto communicator = JoinMpiGroup(options.group);
  LOCKSTEP_RETURN_IF_ERROR(communicator.status());
  return fn(**communicator);
}

// Runs the function on a rank, in the call that the rank was started for.
[[noreturn]] void RunAsRank(const Files& files, const Function& fn,
                            const RunRanksOptions& options) {
  int rank = 0;
  const char* const text = std::getenv("PMIX_RANK");
  if (text == nullptr || !absl::SimpleAtoi(text, &rank)) std::abort();
  WriteFile(files.pid(rank), absl::StrCat(getpid()));
  const Result result = RunFunction(fn, options);
  WriteFile(files.result(rank), SerializeResult(result));
  std::exit(0);
}

std::vector<std::string> Command(int world_size, const std::string& test) {
  return {"mpirun", "--allow-run-as-root", "--oversubscribe",
          "--enable-recovery", "--bind-to", "none",
          // Use shared memory alone. Do not read another process's memory,
          // which containers forbid.
          "--mca", "btl", "self,vader", "--mca",
          "btl_vader_single_copy_mechanism", "none", "-n",
          absl::StrCat(world_size), OwnProgramPath(),
          absl::StrCat("--gtest_filter=", test)};
}

SubprocessOptions Options(const Files& files, size_t call) {
  SubprocessOptions options;
  // Variables that ranks must not inherit from the test.
  options.unset = {"GTEST_OUTPUT",
                   "GTEST_SHARD_INDEX",
                   "GTEST_SHARD_STATUS_FILE",
                   "GTEST_TOTAL_SHARDS",
                   "TEST_PREMATURE_EXIT_FILE",
                   "TEST_SHARD_INDEX",
                   "TEST_SHARD_STATUS_FILE",
                   "TEST_TOTAL_SHARDS",
                   "XML_OUTPUT_FILE"};
  const char* const asan = std::getenv("ASAN_OPTIONS");
  options.environment = {
      {kFolderVariable, files.folder},
      {kCallVariable, absl::StrCat(call)},
      {"TMPDIR", files.folder},
      {"OMPI_MCA_btl_vader_backing_directory", files.folder},
      // Open MPI does not release all memory that it allocates.
      {"ASAN_OPTIONS",
       absl::StrCat(asan == nullptr ? "" : asan, ":detect_leaks=0")}};
  options.parent_death_signal = SIGTERM;  // It then ends its ranks.
  return options;
}

// One rank, as observed by the test.
class RankWatch {
 public:
  RankWatch(const Files& files, int rank)
      : pid_file_(files.pid(rank)), result_file_(files.result(rank)) {}

  bool HasResult() const { return std::filesystem::exists(result_file_); }
  bool HasEnded() const {
    const std::optional<ProcessStat> stat = Stat();
    return Pid() > 0 && (!stat.has_value() || stat->state == 'Z');
  }
  bool IsStopped() const {
    const std::optional<ProcessStat> stat = Stat();
    return stat.has_value() && stat->state == 'T';
  }
  void Kill() const {
    if (Pid() > 0 && !HasEnded()) SendSignal(Pid(), SIGKILL);
  }

 private:
  pid_t Pid() const {
    int pid = 0;
    return absl::SimpleAtoi(ReadFile(pid_file_).value_or(""), &pid) ? pid : 0;
  }
  std::optional<ProcessStat> Stat() const {
    return Pid() > 0 ? ReadProcessStat(Pid()) : std::nullopt;
  }

  std::string pid_file_;
  std::string result_file_;
};

// Kills the stopped ranks once all other ranks have a result or have ended.
void KillStopped(const std::vector<RankWatch>& ranks) {
  for (const RankWatch& rank : ranks) {
    if (!rank.HasResult() && !rank.HasEnded() && !rank.IsStopped()) return;
  }
  for (const RankWatch& rank : ranks) {
    if (rank.IsStopped()) rank.Kill();
  }
}

// Waits for mpirun. Returns true if it ended within the deadline.
bool AwaitMpirun(Subprocess& mpirun, const std::vector<RankWatch>& ranks,
                 absl::Duration limit) {
  const Deadline deadline(limit);
  const Deadline patience(limit + kMpirunPatience);
  bool late = false;
  while (mpirun.Wait(absl::Milliseconds(5)) == Subprocess::kStillRunning) {
    KillStopped(ranks);
    if (!late && deadline.passed()) {
      late = true;
      for (const RankWatch& rank : ranks) rank.Kill();
      SendSignal(mpirun.pid(), SIGTERM);
    }
    if (patience.passed()) mpirun.End();
  }
  return !late;
}

std::vector<Result> CollectResults(const Files& files, int world_size,
                                   bool in_time, absl::Duration deadline,
                                   const std::string& errors) {
  std::vector<Result> results;
  bool complete = true;
  for (int rank = 0; rank < world_size; ++rank) {
    std::optional<Result> result = ReadResult(files.result(rank));
    if (!result.has_value()) {
      complete = false;
      result = in_time ? absl::AbortedError(absl::StrCat(
                             "rank ", rank, " ended without a result"))
                       : absl::DeadlineExceededError(absl::StrCat(
                             "rank ", rank, " was still running after ",
                             absl::FormatDuration(deadline)));
    }
    results.push_back(*std::move(result));
  }
  if (!complete) std::fputs(errors.c_str(), stderr);
  return results;
}

std::vector<Result> RunJob(int world_size, const std::string& test, size_t call,
                           const RunRanksOptions& options) {
  const auto all = [&](const absl::Status& status) {
    return std::vector<Result>(static_cast<size_t>(world_size), status);
  };
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("mpirun", testing::TempDir());
  if (!folder.ok()) return all(folder.status());
  const Files files{folder->path()};
  std::vector<RankWatch> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(files, rank);
  absl::StatusOr<Subprocess> mpirun =
      Subprocess::Start(Command(world_size, test), Options(files, call));
  if (!mpirun.ok()) return all(mpirun.status());
  const bool in_time = AwaitMpirun(*mpirun, ranks, options.deadline);
  return CollectResults(files, world_size, in_time, options.deadline,
                        mpirun->err());
}

}  // namespace

std::string WhyNoMpirun() {
  if (std::getenv(kFolderVariable) != nullptr) return "";  // On a rank.
  static const bool is_found = !FindMpirun(/*nproc=*/1).empty();
  return is_found ? ""
                  : "Open MPI's mpirun is not installed: run tools/setup.sh";
}

std::vector<absl::StatusOr<std::string>> RunMpiRanksCollect(
    int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options) {
  const std::string test = RunningTest();
  const size_t call = EarlierCalls(test);
  const char* const folder = std::getenv(kFolderVariable);
  if (folder == nullptr) return RunJob(world_size, test, call, options);
  size_t own = 0;
  const char* const text = std::getenv(kCallVariable);
  if (text == nullptr || !absl::SimpleAtoi(text, &own)) std::abort();
  if (call == own) RunAsRank(Files{folder}, fn, options);
  return std::vector<Result>(static_cast<size_t>(world_size), std::string());
}

std::vector<absl::Status> RunMpiRanks(
    int world_size, const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options) {
  const auto collect = [&](Communicator& communicator) -> Result {
    LOCKSTEP_RETURN_IF_ERROR(fn(communicator));
    return std::string();
  };
  std::vector<absl::Status> statuses;
  for (const Result& result :
       RunMpiRanksCollect(world_size, collect, options)) {
    statuses.push_back(result.status());
  }
  return statuses;
}

}  // namespace lockstep
