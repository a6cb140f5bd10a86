// Reads /proc, /sys and .git.
#include "benchmarks/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lockstep {
namespace {

// Empty if the file cannot be read.
std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool IsCommit(absl::string_view text) {
  return text.size() >= 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
         });
}

std::string CommitOr(absl::string_view text, absl::string_view otherwise) {
  return std::string(IsCommit(text) ? text : otherwise);
}

// The commit of `ref` in the text of .git/packed-refs.
std::string PackedCommit(absl::string_view packed_refs, absl::string_view ref) {
  for (const absl::string_view line : absl::StrSplit(packed_refs, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() == 2 && fields[1] == ref) return CommitOr(fields[0], "");
  }
  return "";
}

int AffinityCores() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return CPU_COUNT(&cpus);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

std::string CpuModel(absl::string_view cpuinfo) {
  for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (fields.size() != 2) continue;
    if (absl::StripAsciiWhitespace(fields[0]) != "model name") continue;
    return std::string(absl::StripAsciiWhitespace(fields[1]));
  }
  return "unknown CPU";
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
  const int cores = std::max(AffinityCores(), 1);
  const int quota = CoresOfQuota(ReadText("/sys/fs/cgroup/cpu.max"));
  return quota > 0 ? std::min(cores, quota) : cores;
}

Machine DescribeMachine() {
  Machine machine;
  machine.cpu = CpuModel(ReadText("/proc/cpuinfo"));
  machine.cores = UsableCores();
  machine.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
                         static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  utsname name;
  if (uname(&name) == 0) {
    machine.system = absl::StrCat(name.sysname, " ", name.release);
  }
  return machine;
}

std::string CheckedOutCommit(const std::string& folder) {
  const std::string git = absl::StrCat(folder, "/.git/");
  const std::string text = ReadText(git + "HEAD");
  absl::string_view head = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&head, "ref: ")) return CommitOr(head, "");
  const std::string loose = ReadText(absl::StrCat(git, head));
  return CommitOr(absl::StripAsciiWhitespace(loose),
                  PackedCommit(ReadText(git + "packed-refs"), head));
}

std::string TimeStamp() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                          absl::UTCTimeZone());
}

}  // namespace lockstep
