// What headers, libraries, Bazel and git say.
#include "conformance/report/versions.h"

#include <dnnl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace lockstep {
namespace {

std::string Compiler() {
#ifdef __clang__
  return __VERSION__;
#else
  return absl::StrCat("GCC ", __VERSION__);
#endif
}

std::string Abseil() {
#ifdef ABSL_LTS_RELEASE_VERSION
  return absl::StrCat(ABSL_LTS_RELEASE_VERSION);
#else
  return "between releases";
#endif
}

std::string Onednn() {
  const dnnl_version_t& version = *dnnl_version();
  return absl::StrCat(version.major, ".", version.minor, ".", version.patch);
}

// The first line that a command of ours prints, if it exits with 0; else "".
std::string FirstLine(const char* command) {
  FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::array<char, 256> buffer;
  const size_t size = fread(buffer.data(), 1, buffer.size(), pipe);
  if (pclose(pipe) != 0) return "";
  const std::string text(buffer.data(), size);
  return text.substr(0, text.find('\n'));
}

// Of the `bazel` on the path, which started this program if `bazel run` did;
// empty if it cannot be told. It starts no server. Debian's does not know its
// version; its package does.
std::string Bazel() {
  const std::string line =
      FirstLine("exec timeout 10 bazel --version 2>/dev/null");
  absl::string_view version = line;
  absl::ConsumePrefix(&version, "bazel ");
  if (version != "no_version") return std::string(version);
  return FirstLine(
      "exec timeout 10 dpkg-query --show --showformat='${Version}' "
      "bazel-bootstrap 2>/dev/null");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Versions() {
  std::vector<std::pair<std::string, std::string>> versions = {
      {"Compiler", Compiler()}, {"abseil", Abseil()}, {"oneDNN", Onednn()}};
  const std::string bazel = Bazel();
  if (!bazel.empty()) versions.emplace_back("Bazel", bazel);
  return versions;
}

std::optional<absl::Time> CommitTime() {
  if (std::getenv("BUILD_WORKSPACE_DIRECTORY") == nullptr) return std::nullopt;
  const std::string line = FirstLine(
      "exec timeout 10 git -C \"$BUILD_WORKSPACE_DIRECTORY\" "
      "show --no-patch --format=%ct HEAD 2>/dev/null");
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(line, &seconds)) return std::nullopt;
  return absl::FromUnixSeconds(seconds);
}

}  // namespace lockstep
