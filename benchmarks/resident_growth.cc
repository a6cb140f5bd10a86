// A forked process and its resource usage.
#include "benchmarks/resident_growth.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {
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

}  // namespace lockstep
