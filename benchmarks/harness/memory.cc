// Reads /proc/meminfo and the control group of version 2.
#include "benchmarks/harness/memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"

namespace lockstep::benchmarks {
namespace {

// Of what is available, which others may come to need too.
constexpr double kShareForRun = 0.7;

// Empty if the file cannot be read.
std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// What the group at the root of this process's view has left. "max" is no
// number, and stands for no limit.
std::optional<int64_t> LeftInControlGroup() {
  int64_t limit = 0, used = 0;
  if (!absl::SimpleAtoi(ReadText("/sys/fs/cgroup/memory.max"), &limit) ||
      !absl::SimpleAtoi(ReadText("/sys/fs/cgroup/memory.current"), &used)) {
    return std::nullopt;
  }
  return std::max<int64_t>(limit - used, 0);
}

}  // namespace

std::optional<int64_t> MemAvailable(absl::string_view meminfo) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (fields.size() == 3 && fields[0] == "MemAvailable:" &&
        absl::SimpleAtoi(fields[1], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return std::nullopt;
}

int64_t AvailableMemory() {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  return std::min(MemAvailable(ReadText("/proc/meminfo")).value_or(kUnknown),
                  LeftInControlGroup().value_or(kUnknown));
}

int64_t MemoryForRun() {
  return static_cast<int64_t>(kShareForRun *
                              static_cast<double>(AvailableMemory()));
}

absl::Status CheckMemory(absl::string_view what, int64_t needed, int64_t room) {
  if (needed <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " need ", needed >> 20,
                                                 " MiB, and there is room for ",
                                                 room >> 20, " MiB"));
}

// A forked process and its resource usage.
namespace {

constexpr unsigned kDeadlineSeconds = 60;
constexpr absl::string_view kOk = "grew by ";

// A fork begins with the peak that it has at that moment, not its parent's.
int64_t PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// In the child: writes the growth, or what went wrong.
[[noreturn]] void Measure(const std::function<absl::Status()>& warm_up,
                          const std::function<absl::Status()>& work, int fd) {
  alarm(kDeadlineSeconds);
  absl::Status status = warm_up();
  const int64_t before = PeakBytes();
  if (status.ok()) status = work();
  const std::string report = status.ok()
                                 ? absl::StrCat(kOk, PeakBytes() - before)
                                 : std::string(status.message());
  const ssize_t written = write(fd, report.data(), report.size());
  _exit(written == static_cast<ssize_t>(report.size()) ? 0 : 1);
}

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  ssize_t size;
  while ((size = read(fd, buffer.data(), buffer.size())) != 0) {
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) break;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  return text;
}

}  // namespace

absl::StatusOr<int64_t> ResidentGrowth(
    const std::function<absl::Status()>& warm_up,
    const std::function<absl::Status()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  const OwnedFd reader(ends[0]);
  OwnedFd writer(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (pid == 0) Measure(warm_up, work, writer.get());
  writer.Close();
  const std::string report = ReadAll(reader.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::AbortedError(
        "the process whose memory was to be measured did not finish");
  }
  int64_t growth = 0;
  absl::string_view rest = report;
  if (absl::ConsumePrefix(&rest, kOk) && absl::SimpleAtoi(rest, &growth)) {
    return growth;
  }
  return absl::InternalError(report);
}

}  // namespace lockstep::benchmarks
