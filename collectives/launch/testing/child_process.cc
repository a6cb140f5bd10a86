#include "collectives/launch/testing/child_process.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr char kMark[] = "LOCKSTEP_TEST_MARK";

// Returns a mark that no process of another test has, in any PID namespace.
std::string NewMark() {
  static int count = 0;
  return absl::StrCat(getpid(), ".", absl::ToUnixNanos(absl::Now()), ".",
                      ++count);
}

// torchrun takes seconds to start, and longer on a busy machine.
constexpr absl::Duration kDeadline = absl::Seconds(100);

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& argv,
                           const Environment& environment)
    : ChildProcess(argv, environment, NewMark()) {}

ChildProcess::ChildProcess(const std::vector<std::string>& argv,
                           Environment environment, const std::string& mark)
    : Subprocess([&] {
        environment.push_back({kMark, mark});
        return Start(argv, {.environment = environment}).value();
      }()),
      mark_(mark) {}

ChildProcess::~ChildProcess() {
  for (const pid_t pid : Marked()) SendSignal(pid, SIGKILL);
}

std::optional<std::string> ChildProcess::ReadLine() {
  absl::StatusOr<std::string> line = Subprocess::ReadLine(kTestDeadline);
  if (!line.ok()) return std::nullopt;
  return *std::move(line);
}

std::vector<pid_t> ChildProcess::Marked() const {
  return ProcessesWithVariable(absl::StrCat(kMark, "=", mark_));
}

bool ChildProcess::AwaitMarked(absl::FunctionRef<bool(int count)> done,
                               absl::Duration deadline) const {
  const Deadline end(deadline);
  while (!end.passed()) {
    if (done(static_cast<int>(Marked().size()))) return true;
    poll(nullptr, 0, 2);  // Leaves the core to the processes under test.
  }
  return false;
}

std::vector<std::string> FindMpirun(int nproc) {
  // From version 6 on, Open MPI requires HOME, which Bazel does not set for
  // tests.
  setenv("HOME", testing::TempDir().c_str(), /*overwrite=*/0);
  // A killed mpirun leaves the memory that its ranks share, by default in
  // /dev/shm.
  setenv("OMPI_MCA_btl_vader_backing_directory", testing::TempDir().c_str(),
         /*overwrite=*/1);
  const SubprocessResult version =
      RunSubprocess({"mpirun", "--version"}, kDeadline);
  if (version.exit_status != 0 || !absl::StrContains(version.out, "Open MPI")) {
    return {};
  }
  // Open MPI needs these flags to run as root, and with more ranks than cores.
  return {"mpirun", "-n", absl::StrCat(nproc), "--oversubscribe",
          "--allow-run-as-root"};
}

std::vector<std::string> FindTorchrunProgram() {
  // A distribution's PyTorch may work only with the distribution's python3.
  const std::vector<std::vector<std::string>> kCandidates = {
      {"torchrun"},
      {"python3", "-m", "torch.distributed.run"},
      {"/usr/bin/python3", "-m", "torch.distributed.run"}};
  for (std::vector<std::string> candidate : kCandidates) {
    candidate.push_back("--help");
    if (RunSubprocess(candidate, kDeadline).exit_status != 0) continue;
    candidate.pop_back();
    // --standalone would use one port for all runs.
    candidate.insert(candidate.end(),
                     {"--nnodes=1", "--rdzv_backend=c10d",
                      "--rdzv_endpoint=localhost:0", "--monitor_interval=0.1"});
    return candidate;
  }
  return {};
}

std::vector<std::string> FindTorchrun(int nproc) {
  std::vector<std::string> command = FindTorchrunProgram();
  if (command.empty()) return command;
  // Newer releases write --no-python and accept this spelling too. PyTorch 1.13
  // cannot read its own defaults of --redirects and --tee under Python 3.11.
  command.insert(command.end(),
                 {"--no_python", absl::StrCat("--nproc_per_node=", nproc),
                  "--redirects=1", "--tee=1"});
  return command;
}

}  // namespace lockstep
