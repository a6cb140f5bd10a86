// Reads /proc, /sys and .git.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "report/document.h"

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

std::string MachineText(const Machine& machine) {
  const double gib = static_cast<double>(machine.memory_bytes) / (1 << 30);
  return absl::StrCat(machine.cpu, ", ", machine.cores,
                      machine.cores == 1 ? " core, " : " cores, ",
                      absl::StrFormat("%.0f GiB, ", gib), machine.system);
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

namespace report {

Origin OriginOf(const std::string& label, std::span<char* const> argv) {
  // Set by `bazel run`.
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const bool bazel = workspace != nullptr;
  std::vector<std::string> words = {bazel ? absl::StrCat("bazel run ", label)
                                          : std::string(argv[0])};
  if (bazel && argv.size() > 1) words.push_back("--");
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return {.machine = DescribeMachine(),
          .command = absl::StrJoin(words, " "),
          .commit = bazel ? CheckedOutCommit(workspace) : "",
          .created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                                      absl::UTCTimeZone())};
}

}  // namespace report
}  // namespace lockstep
