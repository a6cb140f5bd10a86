// The flag --help, and absl's flags by collectives/launch/command_line.
#include "base/command.h"

#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "report/machine.h"
#include "report/terminal.h"

ABSL_FLAG(bool, help, false, "print the usage");

namespace lockstep {

std::optional<int> BeginCommand(absl::string_view command,
                                const std::string& usage,
                                std::span<char* const> argv) {
  const absl::Status flags =
      ParseFlags(std::vector<std::string>(argv.begin() + 1, argv.end()));
  if (!flags.ok()) {
    Fail(command, flags);
    return kUsageError;
  }
  if (!absl::GetFlag(FLAGS_help)) return std::nullopt;
  Print(usage);
  return 0;
}

// What Bazel's environment and the arguments say.
namespace {

// Set by `bazel run`.
const char* Workspace() { return std::getenv("BUILD_WORKSPACE_DIRECTORY"); }

}  // namespace

std::string CommandText(const std::string& label, std::span<char* const> argv) {
  const bool bazel = Workspace() != nullptr;
  std::vector<std::string> words = {bazel ? absl::StrCat("bazel run ", label)
                                          : std::string(argv[0])};
  if (bazel && argv.size() > 1) words.push_back("--");
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return absl::StrJoin(words, " ");
}

std::string CommitText() {
  return Workspace() != nullptr ? CheckedOutCommit(Workspace()) : "";
}

}  // namespace lockstep
