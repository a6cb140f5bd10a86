#include "collectives/usable_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

int AffinityCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    return CPU_COUNT(&cores);
  }
  // More cores than a cpu_set_t holds.
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

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
  const int cores = std::max(AffinityCores(), 1);
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const int quota = CoresOfQuota(text);
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace lockstep
