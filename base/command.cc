#include "base/command.h"

#include <cstdio>
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
  std::fputs(usage.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

std::string CommandText(const std::string& label, std::span<char* const> argv) {
  // Set by `bazel run`.
  const bool bazel = std::getenv("BUILD_WORKSPACE_DIRECTORY") != nullptr;
  std::vector<std::string> words = {bazel ? absl::StrCat("bazel run ", label)
                                          : std::string(argv[0])};
  if (bazel && argv.size() > 1) words.push_back("--");
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return absl::StrJoin(words, " ");
}

}  // namespace lockstep
