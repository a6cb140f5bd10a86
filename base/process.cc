#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"

namespace lockstep {

std::optional<ProcessStat> ReadProcessStat(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char buffer[1024];
  const ssize_t size = read(fd, buffer, sizeof(buffer));
  close(fd);
  if (size <= 0) return std::nullopt;
  return ParseProcessStat(absl::string_view(buffer, static_cast<size_t>(size)));
}

std::optional<ProcessStat> ParseProcessStat(absl::string_view text) {
  // The second field, the name, ends with the last parenthesis. The next fields
  // are 3, the state, and 4, the parent. Fields 14 to 17 are the CPU times, and
  // field 22 is the start.
  const size_t name_end = text.rfind(')');
  if (name_end == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(
      text.substr(name_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessStat stat;
  if (fields.size() < 20 || fields[0].size() != 1 ||
      !absl::SimpleAtoi(fields[1], &stat.parent) ||
      !absl::SimpleAtoi(fields[19], &stat.start_ticks)) {
    return std::nullopt;
  }
  for (size_t i = 11; i < 15; ++i) {  // Fields 14 to 17.
    int64_t ticks = 0;
    if (!absl::SimpleAtoi(fields[i], &ticks)) return std::nullopt;
    stat.cpu_ticks += ticks;
  }
  stat.state = fields[0][0];
  return stat;
}

ProcessIdentity ThisProcess() {
  const int32_t pid = getpid();
  const std::optional<ProcessStat> stat = ReadProcessStat(pid);
  return {pid, stat.has_value() ? stat->start_ticks : 0};
}

std::string OwnProgramPath() {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "/proc/self/exe";
  // The bundle's own loader may have started this (tools/gpu_bundle/start.cc).
  const char* const started = std::getenv("LOCKSTEP_PROGRAM");
  return started != nullptr && path.filename() == "ld-linux-x86-64.so.2"
             ? started
             : path.string();
}

bool IsAlive(const ProcessIdentity& process) {
  const std::optional<ProcessStat> stat = ReadProcessStat(process.pid);
  return stat.has_value() && stat->state != 'Z' && stat->state != 'X' &&
         stat->start_ticks == process.start_ticks;
}

uint64_t TicksSinceHostStart() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const uint64_t ticks = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(now.tv_sec) * ticks +
         static_cast<uint64_t>(now.tv_nsec) * ticks / 1'000'000'000;
}

bool HasVariable(pid_t process, absl::string_view variable) {
  const std::string text =
      ReadFile(absl::StrCat("/proc/", process, "/environ")).value_or("");
  const std::vector<absl::string_view> all = absl::StrSplit(text, '\0');
  return std::find(all.begin(), all.end(), variable) != all.end();
}

namespace {

std::vector<pid_t> ListProcesses() {
  std::vector<pid_t> all;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) {
      all.push_back(pid);
    }
  }
  return all;
}

}  // namespace

int64_t CpuTicksOfTrees(std::span<const pid_t> roots) {
  std::map<pid_t, ProcessStat> stats;
  for (const pid_t pid : ListProcesses()) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (stat.has_value()) stats.emplace(pid, *stat);
  }
  int64_t ticks = 0;
  for (const auto& [pid, stat] : stats) {
    // Climbs until it reaches a root or a process whose parent is not in
    // `stats`. The processes were not read at one moment, so the parents could
    // form a circle.
    pid_t above = pid;
    for (size_t steps = 0; steps <= stats.size(); ++steps) {
      if (std::find(roots.begin(), roots.end(), above) != roots.end()) {
        ticks += stat.cpu_ticks;
        break;
      }
      const auto found = stats.find(above);
      if (found == stats.end()) break;
      above = found->second.parent;
    }
  }
  return ticks;
}

std::vector<pid_t> ProcessesWithVariable(absl::string_view variable) {
  std::vector<pid_t> found = ListProcesses();
  std::erase_if(found, [&](pid_t pid) { return !HasVariable(pid, variable); });
  return found;
}

bool DescendsFrom(pid_t process, pid_t ancestor) {
  while (process > 1 && process != ancestor) {
    const std::optional<ProcessStat> stat = ReadProcessStat(process);
    if (!stat.has_value()) return false;
    process = stat->parent;
  }
  return process == ancestor;
}

namespace {

// Returns whether the number can only mean one process or one group.
bool NamesOneProcess(pid_t pid) {
  if (pid > 1) return true;
  errno = EINVAL;
  return false;
}

}  // namespace

bool SendSignal(pid_t pid, int signal) {
  return NamesOneProcess(pid) && kill(pid, signal) == 0;
}

bool SendSignalToGroup(pid_t leader, int signal) {
  return NamesOneProcess(leader) && kill(-leader, signal) == 0;
}

bool AwaitProcessEnd(pid_t process, absl::Duration timeout) {
  const Deadline deadline(timeout);
  const OwnedFd file(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!file.open()) return errno == ESRCH;
  pollfd ended = {file.get(), POLLIN, 0};
  while (true) {
    const int ready = poll(&ended, 1, PollMilliseconds(deadline));
    if (ready > 0) return true;
    if (deadline.passed()) return false;
  }
}

namespace {

// An upper bound for the number of CPUs that Linux can be built for.
constexpr int kMaxCpus = 1 << 16;

}  // namespace

std::vector<int> AffinityCpus(pid_t process) {
  std::vector<int> numbers;
  // The kernel rejects a set that is smaller than its own.
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<cpu_set_t> set(bytes / sizeof(cpu_set_t) + 1);
    if (sched_getaffinity(process, bytes, set.data()) != 0) continue;
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.data())) numbers.push_back(cpu);
    }
    break;
  }
  return numbers;
}

bool SetAffinity(std::span<const int> cpus) {
  // The set has the largest size: a process must not allocate memory after a
  // fork.
  cpu_set_t set[kMaxCpus / CPU_SETSIZE] = {};
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxCpus) {
      errno = EINVAL;
      return false;
    }
    CPU_SET_S(static_cast<size_t>(cpu), sizeof(set), set);
  }
  return sched_setaffinity(0, sizeof(set), set) == 0;
}

int CoresOfQuota(absl::string_view cpu_max) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), ' ');
  int64_t quota = 0, period = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &quota) ||
      !absl::SimpleAtoi(fields[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>((quota - 1) / period + 1);
}

int UsableCores() {
  const pid_t self = 0;
  return UsableCores(std::span(&self, 1));
}

int UsableCores(std::span<const pid_t> processes) {
  std::set<int> cpus;
  for (const pid_t process : processes) {
    const std::vector<int> some = AffinityCpus(process);
    cpus.insert(some.begin(), some.end());
  }
  const int cores = std::max(static_cast<int>(cpus.size()), 1);
  constexpr char kQuota[] = "/sys/fs/cgroup/cpu.max";
  // Most hosts do not have this file, so it is opened only if it exists:
  // ThreadSanitizer reports a data race in abseil's text for the error, because
  // it does not see into the library.
  const int quota = access(kQuota, R_OK) == 0
                        ? CoresOfQuota(ReadFile(kQuota).value_or(""))
                        : 0;
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace lockstep
