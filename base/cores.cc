// Affinity masks, and the quota of a control group.
#include "base/cores.h"

#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

// The most CPUs that Linux can be built for, and then some.
constexpr int kMaxCpus = 1 << 16;

}  // namespace

std::vector<int> AffinityCpus(pid_t process) {
  std::vector<int> numbers;
  // A set that is too small for the kernel's is refused.
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
  // The largest set, since who has forked should not ask for memory.
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
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const int quota = CoresOfQuota(text);
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace lockstep
