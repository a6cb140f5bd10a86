#include "base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// Longer lines are dropped, so that a program that never ends a line does not
// fill the memory.
constexpr size_t kLongestLine = 1 << 20;

// How often to check whether a process has ended after its output has ended. (A
// pidfd would wake poll(), but not on all kernels: with Linux 6.18, poll() was
// seen to sleep on after the process had ended.)
constexpr int kEndPollMilliseconds = 10;

struct Pipe {
  OwnedFd reader;
  OwnedFd writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot create a pipe");
  }
  return Pipe{OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// Returns a socket pair, since writing to a pipe that nobody reads raises a
// signal.
absl::StatusOr<Pipe> MakeInput() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot create a socket");
  }
  return Pipe{OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// Everything that the child needs. It is prepared before the fork, since other
// threads of this process may hold locks during the fork.
struct Child {
  char* const* argv;
  char* const* environment;
  pid_t parent;
  int death_signal;
  std::array<int, 3> files;  // The child's standard input, output and error.
};

[[noreturn]] void ExecChild(Child child) {
  setpgid(0, 0);
  // The child gets the signal when its parent ends. The parent may have ended
  // already.
  prctl(PR_SET_PDEATHSIG, child.death_signal);
  if (getppid() != child.parent) _exit(127);
  for (int& file : child.files) {  // None of the files is 0, 1 or 2 afterwards.
    file = fcntl(file, F_DUPFD_CLOEXEC, 3);
    if (file < 0) _exit(127);
  }
  for (int fd = 0; fd < 3; ++fd) dup2(child.files[fd], fd);
  execvpe(child.argv[0], child.argv, child.environment);
  dprintf(STDERR_FILENO, "cannot run it: %s\n", std::strerror(errno));
  _exit(127);
}

}  // namespace

std::vector<std::string> MergedEnvironment(
    const Environment& changes, const std::vector<std::string>& without) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const std::string& name : without) merged.erase(name);
  for (const auto& [name, value] : changes) merged[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : merged) {
    result.push_back(absl::StrCat(name, "=", value));
  }
  return result;
}

std::vector<char*> ExecPointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) {
    // exec() takes non-const pointers.
    pointers.push_back(const_cast<char*>(string.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<Subprocess> Subprocess::Start(
    const std::vector<std::string>& argv, const SubprocessOptions& options) {
  const std::vector<std::string> environment =
      MergedEnvironment(options.environment, options.unset);
  const std::vector<char*> arguments = ExecPointers(argv);
  const std::vector<char*> variables = ExecPointers(environment);
  Pipe in, out, err;
  LOCKSTEP_ASSIGN_OR_RETURN(out, MakePipe());
  if (!options.merge_error) {
    LOCKSTEP_ASSIGN_OR_RETURN(err, MakePipe());
  }
  if (options.writes_input) {
    LOCKSTEP_ASSIGN_OR_RETURN(in, MakeInput());
  } else {
    in.reader = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!in.reader.open()) return absl::ErrnoToStatus(errno, "/dev/null");
  }
  const Child child = {
      arguments.data(),
      variables.data(),
      getpid(),
      options.parent_death_signal,
      {in.reader.get(), out.writer.get(),
       options.merge_error ? out.writer.get() : err.writer.get()}};
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (pid == 0) ExecChild(child);
  setpgid(pid, pid);  // The child does the same; either of them may be first.
  return Subprocess(pid, std::move(in.writer),
                    Stream{.file = std::move(out.reader)},
                    Stream{.file = std::move(err.reader)});
}

absl::Status Subprocess::WriteLine(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  absl::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t sent =
        send(input_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0)
      return absl::UnavailableError("the program reads no more input");
    rest.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Subprocess::ReadLine(absl::Duration timeout) {
  const Deadline deadline(timeout);
  for (bool more = true; true; more = ReadMore(deadline)) {
    const size_t end = out_.text.find('\n');
    if (end != std::string::npos) {
      std::string line = out_.text.substr(0, end);
      out_.text.erase(0, end + 1);
      return line;
    }
    if (out_.text.size() > kLongestLine) out_.text.clear();
    if (!out_.file.open())
      return absl::OutOfRangeError("the program's output has ended");
    if (!more)
      return absl::DeadlineExceededError("the program has written no line");
  }
}

bool Subprocess::AwaitOutput(absl::string_view text, absl::Duration timeout) {
  const Deadline deadline(timeout);
  bool more = true;
  while (more && !absl::StrContains(out_.text, text)) {
    more = out_.file.open() && ReadMore(deadline);
  }
  return absl::StrContains(out_.text, text);
}

int Subprocess::Wait(absl::Duration timeout) {
  const Deadline deadline(timeout);
  bool more = true;
  while (more && (!HasEnded() || out_.file.open() || err_.file.open())) {
    more = ReadMore(deadline);
  }
  return HasEnded() ? *exit_status_ : kStillRunning;
}

int Subprocess::End() {
  if (pid_ < 0) return exit_status_.value_or(kStillRunning);
  // The process was not reaped before this point, so no other process or group
  // can have its number. The signal has no effect on a process that has ended.
  SendSignalToGroup(pid_, SIGKILL);
  while (!HasEnded()) {
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  input_.Close();
  out_.file.Close();
  err_.file.Close();
  return *exit_status_;
}

bool Subprocess::HasEnded() {
  if (exit_status_.has_value()) return true;
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info,
             WEXITED | WNOHANG | WNOWAIT) != 0) {
    exit_status_ = 127;  // Another part of the program has reaped it.
    return true;
  }
  if (info.si_pid == 0) return false;
  exit_status_ =
      info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  return true;
}

bool Subprocess::ReadMore(const Deadline& deadline) {
  const bool last = deadline.passed();
  // poll() ignores negative descriptors.
  std::array<pollfd, 2> files = {pollfd{out_.file.get(), POLLIN, 0},
                                 pollfd{err_.file.get(), POLLIN, 0}};
  int milliseconds = PollMilliseconds(deadline);
  if (!out_.file.open() && !err_.file.open()) {
    milliseconds = std::min(milliseconds, kEndPollMilliseconds);
  }
  const int ready = poll(files.data(), files.size(), milliseconds);
  if (ready <= 0) return !last;
  for (Stream* const stream : {&out_, &err_}) {
    if (files[stream == &out_ ? 0 : 1].revents == 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t size = read(stream->file.get(), buffer.data(), buffer.size());
    if (size > 0) stream->text.append(buffer.data(), static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EINTR)) stream->file.Close();
  }
  return !last;
}

std::string DescribeEnd(int exit_status) {
  if (exit_status < 0) return "it did not end";
  return exit_status > 128
             ? absl::StrCat("signal ", exit_status - 128, " ended it")
             : absl::StrCat("it ended with exit status ", exit_status);
}

SubprocessResult RunSubprocess(const std::vector<std::string>& argv,
                               absl::Duration timeout,
                               const SubprocessOptions& options) {
  absl::StatusOr<Subprocess> process = Subprocess::Start(argv, options);
  if (!process.ok()) return {.out = "", .err = process.status().ToString()};
  const int exit_status = process->Wait(timeout);
  process->End();
  return {exit_status, process->out(), process->err()};
}

}  // namespace lockstep
