#include "collectives/rendezvous/process_identity.h"

#include <fcntl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

struct ProcessState {
  char letter;  // As in proc(5): 'R', 'S', 'Z', ...
  uint64_t start_ticks;
};

std::optional<ProcessState> ReadState(int32_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  char buffer[1024];
  const ssize_t size = read(fd, buffer, sizeof(buffer));
  close(fd);
  if (size <= 0) return std::nullopt;
  const absl::string_view text(buffer, static_cast<size_t>(size));
  // The second field, the name, may hold anything, but it ends with the last
  // parenthesis. After it come field 3, the state, and field 22, the start.
  const size_t name_end = text.rfind(')');
  if (name_end == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipWhitespace());
  ProcessState state;
  if (fields.size() < 20 || fields[0].empty() ||
      !absl::SimpleAtoi(fields[19], &state.start_ticks)) {
    return std::nullopt;
  }
  state.letter = fields[0][0];
  return state;
}

}  // namespace

ProcessIdentity ThisProcess() {
  const int32_t pid = getpid();
  const std::optional<ProcessState> state = ReadState(pid);
  return {pid, state.has_value() ? state->start_ticks : 0};
}

bool IsAlive(const ProcessIdentity& process) {
  const std::optional<ProcessState> state = ReadState(process.pid);
  return state.has_value() && state->letter != 'Z' && state->letter != 'X' &&
         state->start_ticks == process.start_ticks;
}

uint64_t TicksSinceHostStart() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const uint64_t ticks = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(now.tv_sec) * ticks +
         static_cast<uint64_t>(now.tv_nsec) * ticks / 1'000'000'000;
}

}  // namespace lockstep
