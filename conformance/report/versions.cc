// What headers, libraries, Bazel and git say.
#include "conformance/report/versions.h"

#include <dnnl.h>

#include <cstdint>
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
#include "base/subprocess.h"

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

// The first line that a command prints, if it exits with 0; else "".
std::string FirstLine(const std::vector<std::string>& command) {
  const SubprocessResult result = RunSubprocess(command, absl::Seconds(10));
  if (result.exit_status != 0) return "";
  return result.out.substr(0, result.out.find('\n'));
}

// Of the `bazel` on the path, which started this program if `bazel run` did;
// empty if it cannot be told. It starts no server. Debian's does not know its
// version; its package does.
std::string Bazel() {
  const std::string line = FirstLine({"bazel", "--version"});
  absl::string_view version = line;
  absl::ConsumePrefix(&version, "bazel ");
  if (version != "no_version") return std::string(version);
  return FirstLine(
      {"dpkg-query", "--show", "--showformat=${Version}", "bazel-bootstrap"});
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
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) return std::nullopt;
  const std::string line = FirstLine(
      {"git", "-C", workspace, "show", "--no-patch", "--format=%ct", "HEAD"});
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(line, &seconds)) return std::nullopt;
  return absl::FromUnixSeconds(seconds);
}

}  // namespace lockstep
