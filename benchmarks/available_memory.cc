// Reads /proc/meminfo and the control group of version 2.
#include "benchmarks/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
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

}  // namespace lockstep
