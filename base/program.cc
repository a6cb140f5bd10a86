// Processes through fork, pidfd and /proc.
#include "base/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process.h"

namespace lockstep {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void RedirectTo(const std::string& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(125);
}

bool DescendsFrom(pid_t pid, pid_t ancestor) {
  while (pid > 1 && pid != ancestor) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.has_value()) return false;
    pid = stat->parent;
  }
  return pid == ancestor;
}

}  // namespace

Program::Program(const std::string& dir, const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& environment)
    : dir_(dir) {
  std::vector<std::string> copy = argv;
  std::vector<char*> pointers;
  for (std::string& argument : copy) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    RedirectTo(absl::StrCat(dir, "/out"), STDOUT_FILENO);
    RedirectTo(absl::StrCat(dir, "/err"), STDERR_FILENO);
    for (const auto& [name, value] : environment) {
      setenv(name.c_str(), value.c_str(), /*replace=*/1);
    }
    execv(pointers[0], pointers.data());
    _exit(125);
  }
  pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Program::~Program() {
  if (!wait_status_.has_value()) Wait(absl::ZeroDuration());
  if (pid_fd_ >= 0) close(pid_fd_);
}

bool Program::AwaitEnd(absl::Duration time) {
  if (wait_status_.has_value()) return true;
  pollfd ended = {pid_fd_, POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(time))) < 1) {
    return false;
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  wait_status_ = status;
  return true;
}

bool Program::AwaitOutput(const std::string& text, absl::Duration deadline) {
  const absl::Time end = absl::Now() + deadline;
  const std::string path = absl::StrCat(dir_, "/out");
  while (absl::Now() < end) {
    if (ReadAll(path).find(text) != std::string::npos) return true;
    if (AwaitEnd(absl::Milliseconds(5))) {
      return ReadAll(path).find(text) != std::string::npos;
    }
  }
  return false;
}

ProgramResult Program::Wait(absl::Duration deadline) {
  ProgramResult result;
  if (AwaitEnd(deadline)) {
    result.exit_status = WIFSIGNALED(*wait_status_)
                             ? 128 + WTERMSIG(*wait_status_)
                             : WEXITSTATUS(*wait_status_);
  } else {
    kill(pid_, SIGKILL);
    AwaitEnd(absl::Seconds(10));
  }
  result.out = ReadAll(absl::StrCat(dir_, "/out"));
  result.err = ReadAll(absl::StrCat(dir_, "/err"));
  return result;
}

pid_t FindDescendant(pid_t ancestor, const std::string& variable) {
  // Each variable ends with a zero byte; one more in front marks the first.
  const std::string wanted = std::string(1, '\0') + variable + '\0';
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) ||
        !DescendsFrom(pid, ancestor)) {
      continue;
    }
    const std::string environment =
        std::string(1, '\0') + ReadAll(entry.path().string() + "/environ");
    if (environment.find(wanted) != std::string::npos) return pid;
  }
  return -1;
}

}  // namespace lockstep
