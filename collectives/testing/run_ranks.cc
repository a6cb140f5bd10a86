#include "collectives/testing/run_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/tcp/tcp_group.h"

namespace lockstep {
namespace {

using Result = absl::StatusOr<std::string>;
using Function = std::function<Result(Communicator&)>;

std::vector<Result> RunThreads(int world_size, const Function& fn,
                               const RunRanksOptions& options) {
  std::promise<void> done;
  std::thread watch([&options, ended = done.get_future()] {
    const auto limit = absl::ToChronoNanoseconds(options.deadline);
    if (ended.wait_for(limit) == std::future_status::ready) return;
    std::fprintf(stderr, "RunRanks: threads did not end within %s\n",
                 absl::FormatDuration(options.deadline).c_str());
    std::abort();
  });
  std::vector<Result> results(static_cast<size_t>(std::max(world_size, 1)),
                              std::string());
  const absl::Status status =
      RunOnThreads(world_size, options.group, [&](Communicator& communicator) {
        results[communicator.rank()] = fn(communicator);
        return absl::OkStatus();
      });
  if (!status.ok()) results.assign(results.size(), status);
  done.set_value();
  watch.join();
  return results;
}

Result RunRank(Backend backend, int rank, int world_size,
               const std::string& path, const Function& fn,
               const RunRanksOptions& options) {
  FileRendezvousOptions meeting;
  meeting.path = path;
  meeting.rank = rank;
  meeting.world_size = world_size;
  meeting.timeout = options.group.timeout;
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Rendezvous> rendezvous,
                            OpenFileRendezvous(meeting));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> communicator,
      backend == Backend::kTcp
          ? JoinTcpGroup(std::move(rendezvous), {}, options.group)
          : JoinProcessGroup(*rendezvous, options.group));
  return fn(*communicator);
}

// Runs the ranks [begin, end) of one process. Returns the bytes that the
// process sends: for each rank, the size and the result.
std::string RunRanksOfProcess(int begin, int end,
                              const std::function<Result(int rank)>& run) {
  std::vector<Result> results(static_cast<size_t>(end - begin), std::string());
  std::vector<std::thread> others;
  for (int rank = begin + 1; rank < end; ++rank) {
    others.emplace_back([&, rank] { results[rank - begin] = run(rank); });
  }
  results[0] = run(begin);
  for (std::thread& other : others) other.join();
  std::string bytes;
  for (const Result& result : results) {
    const std::string one = SerializeResult(result);
    const int64_t size = static_cast<int64_t>(one.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes.append(one);
  }
  return bytes;
}

// Returns the index-th of the results that a process sent; none if it sent
// fewer.
std::optional<Result> ResultAt(const std::string& bytes, int index) {
  size_t begin = 0;
  for (int i = 0;; ++i) {
    int64_t size;
    if (bytes.size() - begin < sizeof(size)) return std::nullopt;
    std::memcpy(&size, bytes.data() + begin, sizeof(size));
    begin += sizeof(size);
    if (bytes.size() - begin < static_cast<size_t>(size)) return std::nullopt;
    if (i == index) {
      return ParseResult(bytes.substr(begin, static_cast<size_t>(size)));
    }
    begin += static_cast<size_t>(size);
  }
}

[[noreturn]] void RunChild(int pipe, const std::function<std::string()>& run) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string bytes = run();
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t size = write(pipe, bytes.data() + sent, bytes.size() - sent);
    if (size < 0 && errno != EINTR) break;
    sent += static_cast<size_t>(std::max<ssize_t>(size, 0));
  }
  _exit(0);  // No destructors: the parent runs the test's.
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;  // -1: it has ended, or could not be started.
  std::string received;
  bool late = false;
};

// Starts a child that inherits no pipe of an earlier child, because it could
// keep that pipe open.
Child Start(const std::vector<Child>& earlier,
            const std::function<std::string()>& run) {
  Child child;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return child;
  child.pid = fork();
  if (child.pid == 0) {
    for (const Child& other : earlier) close(other.pipe);
    close(ends[0]);
    RunChild(ends[1], run);
  }
  close(ends[1]);
  if (child.pid < 0) {
    close(ends[0]);
  } else {
    child.pipe = ends[0];
  }
  return child;
}

bool IsStopped(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info,
                WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

// Reads all bytes that the children send. Kills children that outlive the
// deadline, and stopped children when no other child is left.
void Collect(std::vector<Child>& children, absl::Duration deadline) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    std::vector<pollfd> pipes;
    bool all_stopped = true;
    for (const Child& child : children) {
      pipes.push_back({child.pipe, POLLIN, 0});
      if (child.pipe >= 0 && !IsStopped(child.pid)) all_stopped = false;
    }
    if (std::all_of(children.begin(), children.end(),
                    [](const Child& child) { return child.pipe < 0; })) {
      return;
    }
    const bool late =
        absl::FromChrono(std::chrono::steady_clock::now() - start) >= deadline;
    poll(pipes.data(), pipes.size(), 10);
    for (size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      if (child.pipe < 0) continue;
      if (late || all_stopped) SendSignal(child.pid, SIGKILL);
      child.late = child.late || late;
      if (late) {
        // Does not wait for the pipe's end: a process that the child started
        // may hold it open.
        close(child.pipe);
        child.pipe = -1;
        continue;
      }
      if (pipes[i].revents == 0) continue;
      char buffer[1 << 16];
      const ssize_t size = read(child.pipe, buffer, sizeof(buffer));
      if (size > 0) {
        child.received.append(buffer, static_cast<size_t>(size));
      } else if (size == 0 || errno != EINTR) {
        close(child.pipe);
        child.pipe = -1;
      }
    }
  }
}

Result ResultOf(int rank, const Child& child, int status, int index,
                absl::Duration deadline) {
  if (child.pid < 0) return absl::InternalError("cannot start a process");
  if (child.late) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", rank, " was still running after ",
                     absl::FormatDuration(deadline)));
  }
  if (WIFSIGNALED(status)) {
    return absl::AbortedError(
        absl::StrCat("rank ", rank, " ended by signal ", WTERMSIG(status)));
  }
  const std::optional<Result> result = ResultAt(child.received, index);
  if (result.has_value()) return *result;
  return absl::AbortedError(
      absl::StrCat("rank ", rank, " ended without a result, with exit status ",
                   WEXITSTATUS(status)));
}

std::vector<Result> RunProcesses(Backend backend, int world_size,
                                 const Function& fn,
                                 const RunRanksOptions& options) {
  const int ranks_per_process = backend == Backend::kMixed ? 2 : 1;
  const int file = memfd_create("rendezvous", MFD_CLOEXEC);
  const std::string path = absl::StrCat("/proc/", getpid(), "/fd/", file);
  std::vector<Child> children;
  for (int begin = 0; begin < world_size; begin += ranks_per_process) {
    const int end = std::min(begin + ranks_per_process, world_size);
    children.push_back(Start(children, [&, begin, end] {
      return RunRanksOfProcess(begin, end, [&](int rank) {
        return RunRank(backend, rank, world_size, path, fn, options);
      });
    }));
  }
  Collect(children, options.deadline);
  close(file);
  std::vector<int> statuses;
  for (const Child& child : children) {
    statuses.push_back(0);
    if (child.pid > 0) waitpid(child.pid, &statuses.back(), 0);
  }
  std::vector<Result> results;
  for (int rank = 0; rank < world_size; ++rank) {
    const size_t child = static_cast<size_t>(rank / ranks_per_process);
    results.push_back(ResultOf(rank, children[child], statuses[child],
                               rank % ranks_per_process, options.deadline));
  }
  return results;
}

}  // namespace

const char* Name(Backend backend) {
  constexpr const char* kNames[] = {"Threads", "Processes", "Mixed", "Tcp"};
  return kNames[static_cast<size_t>(backend)];
}

absl::Duration HangDeadline() {
  constexpr absl::Duration kLeast = absl::Minutes(1);
  constexpr absl::Duration kMost = absl::Minutes(10);
  const char* const given = std::getenv("TEST_TIMEOUT");
  int64_t seconds = 0;
  if (given == nullptr || !absl::SimpleAtoi(given, &seconds)) return kMost;
  return std::clamp(absl::Seconds(seconds) * 4 / 5, kLeast, kMost);
}

bool IsBuilt(Backend backend) { return backend != Backend::kTcp || CanProve(); }

std::vector<absl::StatusOr<std::string>> RunRanksCollect(
    Backend backend, int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options) {
  if (backend == Backend::kThreads) return RunThreads(world_size, fn, options);
  return RunProcesses(backend, world_size, fn, options);
}

std::vector<absl::Status> RunRanks(
    Backend backend, int world_size,
    const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options) {
  const auto collect = [&](Communicator& communicator) -> Result {
    LOCKSTEP_RETURN_IF_ERROR(fn(communicator));
    return std::string();
  };
  std::vector<absl::Status> statuses;
  for (const Result& result :
       RunRanksCollect(backend, world_size, collect, options)) {
    statuses.push_back(result.status());
  }
  return statuses;
}

// Stores the code, then the bytes or the message.
std::string SerializeResult(const absl::StatusOr<std::string>& result) {
  const int32_t code = static_cast<int32_t>(result.status().code());
  std::string bytes(reinterpret_cast<const char*>(&code), sizeof(code));
  return result.ok() ? bytes + *result
                     : absl::StrCat(bytes, result.status().message());
}

absl::StatusOr<std::string> ParseResult(absl::string_view bytes) {
  int32_t code;
  if (bytes.size() < sizeof(code)) {
    return absl::InternalError("a result without a code");
  }
  std::memcpy(&code, bytes.data(), sizeof(code));
  const absl::string_view text = bytes.substr(sizeof(code));
  if (code == 0) return std::string(text);
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

}  // namespace lockstep
