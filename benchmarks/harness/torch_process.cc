// A child process at the other end of a socket.
#include "benchmarks/harness/torch_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// Of a line; who writes longer ones has nothing to say.
constexpr size_t kLongestLine = 64 << 10;
constexpr size_t kLongestTalk = 300;

// In the child. Its own death follows its parent's, which may be over already.
[[noreturn]] void Become(char* const* argv, int socket, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int other = fcntl(socket, F_DUPFD, 3);  // Not one of the next three.
  if (getppid() != parent || other < 0) _exit(127);
  for (int fd = 0; fd < 3; ++fd) dup2(other, fd);
  close(other);
  execvp(argv[0], argv);
  dprintf(STDOUT_FILENO, "cannot run it: %s\n", std::strerror(errno));
  _exit(127);
}

}  // namespace

absl::StatusOr<LineWorker> LineWorker::Start(std::vector<std::string> argv) {
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot create a socket");
  }
  OwnedFd own(ends[0]);
  const OwnedFd others(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (pid == 0) Become(pointers.data(), others.get(), parent);
  setpgid(pid, pid);  // As it does itself: whoever is first.
  return LineWorker(pid, std::move(own));
}

absl::Status LineWorker::Send(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  absl::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t sent =
        send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return absl::UnavailableError(End());
    rest.remove_prefix(static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LineWorker::Receive(absl::Time deadline) {
  std::string answer;
  bool over = false;  // What had come by then may still be the answer.
  while (!TakeAnswer(answer)) {
    const bool last = over;
    over = absl::Now() >= deadline;
    const absl::StatusOr<bool> more =
        last ? absl::StatusOr<bool>(DeadlineExceeded()) : ReadMore(deadline);
    if (!more.ok()) {
      End();
      return more.status();
    }
    if (!*more) return absl::UnavailableError(End());
  }
  return answer;
}

std::string LineWorker::End() {
  if (pid_ < 0) return "it has ended";
  // Its group: a script's programs too. Without effect on one that is ending by
  // itself.
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  socket_.Close();
  return absl::StrCat(
      WIFEXITED(status)
          ? absl::StrCat("it ended with exit status ", WEXITSTATUS(status))
          : absl::StrCat("signal ", WTERMSIG(status), " ended it"),
      LastWords());
}

std::string LineWorker::LastWords() const {
  return talk_.empty() ? "" : absl::StrCat("; it said: ", talk_);
}

absl::Status LineWorker::DeadlineExceeded() const {
  return absl::DeadlineExceededError(
      absl::StrCat("it did not answer in time", LastWords()));
}

bool LineWorker::TakeAnswer(std::string& answer) {
  size_t end;
  while ((end = unread_.find('\n')) != std::string::npos) {
    std::string line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    if (absl::StartsWith(line, kAnswerPrefix)) {
      answer = line.substr(kAnswerPrefix.size());
      return true;
    }
    absl::StripAsciiWhitespace(&line);
    if (!line.empty()) talk_ = line.substr(0, kLongestTalk);
  }
  if (unread_.size() > kLongestLine) unread_.clear();
  return false;
}

absl::StatusOr<bool> LineWorker::ReadMore(absl::Time deadline) {
  if (!socket_.open()) return false;
  pollfd readable = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  // Rounded up, so that the last wait does not become a spin.
  const int64_t left = absl::ToInt64Milliseconds(
      absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)));
  const int ready = poll(
      &readable, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
  if (ready < 0 && errno == EINTR) return true;
  if (ready < 0) return absl::ErrnoToStatus(errno, "poll");
  if (ready == 0) return DeadlineExceeded();
  std::array<char, 4096> buffer;
  const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && errno == EINTR) return true;
  if (size <= 0) return false;
  unread_.append(buffer.data(), static_cast<size_t>(size));
  return true;
}

// The first words with a Python, and the others.

std::vector<std::string> PythonsToTry(const std::string& python) {
  if (python.empty()) return {"python3", "/usr/bin/python3"};
  return {absl::StrContains(python, "/") ? UserPath(python) : python};
}

absl::Status NotUnderstood(absl::string_view answer) {
  return absl::InternalError(
      absl::StrCat("its answer is not understood: ", answer));
}

absl::StatusOr<TorchProcess> TorchProcess::Start(
    std::span<const std::string> pythons, absl::string_view script,
    absl::Time deadline) {
  std::string why;
  for (const std::string& python : pythons) {
    if (!why.empty() && absl::Now() >= deadline) break;
    absl::StatusOr<TorchProcess> process = StartWith(python, script, deadline);
    if (process.ok()) return process;
    absl::StrAppend(&why, why.empty() ? "" : "; ", python, ": ",
                    process.status().message());
  }
  return absl::UnavailableError(why);
}

absl::StatusOr<TorchProcess> TorchProcess::StartWith(const std::string& python,
                                                     absl::string_view script,
                                                     absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      LineWorker worker,
      LineWorker::Start({python, "-c", std::string(script)}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer, worker.Receive(deadline));
  std::pair<std::string, std::string> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (words.first == "missing") return absl::NotFoundError(words.second);
  if (words.first != "ready") return NotUnderstood(answer);
  return TorchProcess(std::move(worker), python, std::move(words.second));
}

absl::StatusOr<std::string> TorchProcess::Ask(absl::string_view line,
                                              absl::Time deadline) {
  const absl::Status sent = worker_.Send(line);
  absl::StatusOr<std::string> answer =
      sent.ok() ? worker_.Receive(deadline) : sent;
  if (answer.ok()) return answer;
  return absl::Status(answer.status().code(),
                      absl::StrCat(python_, ": ", answer.status().message()));
}

}  // namespace lockstep
