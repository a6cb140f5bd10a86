#include "collectives/launch/testing/child_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/subprocess.h"

namespace lockstep {
namespace {

std::string NewMark() {
  static int count = 0;
  return absl::StrCat("LOCKSTEP_TEST_MARK=", getpid(), ".", ++count);
}

Subprocess Start(const std::vector<std::string>& argv,
                 std::vector<std::string> environment,
                 const std::string& mark) {
  environment.push_back(mark);
  SubprocessOptions options;
  for (const std::string& variable : environment) {
    options.environment.push_back(
        absl::StrSplit(variable, absl::MaxSplits('=', 1)));
  }
  return Subprocess::Start(argv, options).value();
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& argv,
                           const std::vector<std::string>& environment)
    : mark_(NewMark()), process_(Start(argv, environment, mark_)) {}

ChildProcess::~ChildProcess() {
  for (const pid_t pid : Marked()) kill(pid, SIGKILL);
}

std::optional<std::string> ChildProcess::ReadLine() {
  absl::StatusOr<std::string> line = process_.ReadLine(kTestDeadline);
  if (!line.ok()) return std::nullopt;
  return *std::move(line);
}

std::vector<pid_t> ChildProcess::Marked() const {
  return ProcessesWithVariable(mark_);
}

bool ChildProcess::AwaitMarked(absl::FunctionRef<bool(int count)> done,
                               absl::Duration deadline) const {
  const Deadline end(deadline);
  while (!end.passed()) {
    if (done(static_cast<int>(Marked().size()))) return true;
    poll(nullptr, 0, 2);  // Leaves the core to those that are waited for.
  }
  return false;
}

}  // namespace lockstep
