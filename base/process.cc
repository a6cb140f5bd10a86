// One read of one file, and three of its fields.
#include "base/process.h"

#include <fcntl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

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
  // The second field, the name, ends with the last parenthesis. After it come
  // field 3, the state, field 4, the parent, and field 22, the start.
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
  stat.state = fields[0][0];
  return stat;
}

// Processes as /proc shows them.

ProcessIdentity ThisProcess() {
  const int32_t pid = getpid();
  const std::optional<ProcessStat> stat = ReadProcessStat(pid);
  return {pid, stat.has_value() ? stat->start_ticks : 0};
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

}  // namespace lockstep
