// fork, exec, pipes, and a scan of /proc for marked processes.
#include "collectives/launch/testing/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"

namespace lockstep {
namespace {

std::string NewMark() {
  static int count = 0;
  return absl::StrCat("LOCKSTEP_TEST_MARK=", getpid(), ".", ++count);
}

// False at the deadline.
bool AwaitReadable(int fd, absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  pollfd entry = {fd, POLLIN, 0};
  return left > absl::ZeroDuration() &&
         poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(left))) > 0;
}

// Reads up to the end of the stream, or the deadline.
std::string ReadAll(int fd) {
  const absl::Time deadline = absl::Now() + kTestDeadline;
  std::string text;
  char buffer[4096];
  while (fd >= 0 && AwaitReadable(fd, deadline)) {
    const ssize_t size = read(fd, buffer, sizeof(buffer));
    if (size <= 0) break;
    text.append(buffer, size);
  }
  return text;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

bool AwaitEnd(pid_t pid, absl::Duration deadline) {
  const OwnedFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return process.open() && AwaitReadable(process.get(), absl::Now() + deadline);
}

ChildProcess::ChildProcess(std::vector<std::string> argv,
                           std::vector<std::string> environment)
    : mark_(NewMark()) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) abort();
  environment.push_back(mark_);
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (std::string& variable : environment) putenv(variable.data());
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  out_ = OwnedFd(out[0]);
  err_ = OwnedFd(err[0]);
  close(out[1]);
  close(err[1]);
}

ChildProcess::~ChildProcess() {
  for (const pid_t pid : Marked()) kill(pid, SIGKILL);
  if (!reaped_) waitpid(pid_, nullptr, 0);
}

std::optional<std::string> ChildProcess::ReadLine() {
  const absl::Time deadline = absl::Now() + kTestDeadline;
  std::string line;
  char next = 0;
  while (AwaitReadable(out_.get(), deadline)) {
    if (read(out_.get(), &next, 1) != 1) return std::nullopt;
    if (next == '\n') return line;
    line.push_back(next);
  }
  return std::nullopt;
}

int ChildProcess::Wait(absl::Duration deadline) {
  if (!AwaitEnd(pid_, deadline)) return -1;
  int wait_status = 0;
  waitpid(pid_, &wait_status, 0);
  reaped_ = true;
  out_text_ = ReadAll(out_.get());
  err_text_ = ReadAll(err_.get());
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                  : WEXITSTATUS(wait_status);
}

std::vector<pid_t> ChildProcess::Marked() const {
  std::vector<pid_t> marked;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string variables = ReadFile(entry.path() / "environ");
    for (absl::string_view variable : absl::StrSplit(variables, '\0')) {
      if (variable == mark_) {
        marked.push_back(pid);
        break;
      }
    }
  }
  return marked;
}

bool ChildProcess::AwaitMarked(absl::FunctionRef<bool(int count)> done,
                               absl::Duration deadline) const {
  const absl::Time end = absl::Now() + deadline;
  while (absl::Now() < end) {
    if (done(static_cast<int>(Marked().size()))) return true;
    poll(nullptr, 0, 2);  // Leaves the core to those that are waited for.
  }
  return false;
}

}  // namespace lockstep
