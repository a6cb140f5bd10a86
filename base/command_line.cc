#include "base/command_line.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

absl::Status SetFlag(absl::CommandLineFlag& flag, const std::string& value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.Name(), "=", value, ": ", error));
}

absl::Status UnknownFlag(const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is not a flag; see --help"));
}

// Sets the flag at arguments[0]; returns how many arguments that took.
absl::StatusOr<size_t> ParseFlag(std::span<const std::string> arguments) {
  const std::string text =
      arguments[0].substr(absl::StartsWith(arguments[0], "--") ? 2 : 1);
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (equals != std::string::npos) {
    if (flag == nullptr) return UnknownFlag(name);
    LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, text.substr(equals + 1)));
    return 1;
  }
  if (flag == nullptr && absl::StartsWith(name, "no")) {
    flag = absl::FindCommandLineFlag(name.substr(2));
    if (flag == nullptr || !flag->IsOfType<bool>()) return UnknownFlag(name);
    LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, "false"));
    return 1;
  }
  if (flag == nullptr) return UnknownFlag(name);
  if (flag->IsOfType<bool>()) {
    LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, "true"));
    return 1;
  }
  if (arguments.size() < 2 || arguments[1] == "--") {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " needs a value"));
  }
  LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, arguments[1]));
  return 2;
}

}  // namespace

std::string UserPath(const std::string& path) {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr || path.empty() || path[0] == '/') return path;
  return absl::StrCat(folder, "/", path);
}

absl::Status EnterUserDirectory() {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr) return absl::OkStatus();
  if (chdir(folder) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(kVariable, "=", folder));
  }
  unsetenv(kVariable);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ParseFlagsBeforeCommand(
    std::span<const std::string> arguments) {
  while (!arguments.empty()) {
    if (arguments[0] == "--") {
      arguments = arguments.subspan(1);
      break;
    }
    if (!absl::StartsWith(arguments[0], "-") || arguments[0] == "-") break;
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t taken, ParseFlag(arguments));
    arguments = arguments.subspan(taken);
  }
  return std::vector<std::string>(arguments.begin(), arguments.end());
}

absl::Status ParseFlags(std::span<const std::string> arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> rest,
                            ParseFlagsBeforeCommand(arguments));
  if (rest.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", rest[0], "' is not a flag; see --help"));
}

int Fail(absl::string_view command, const absl::Status& status) {
  const std::string line = absl::StrCat(command, ": ", status.message(), "\n");
  std::fputs(line.c_str(), stderr);
  return absl::StartsWith(status.message(), "--") ? kUsageError : kFailure;
}

}  // namespace lockstep
