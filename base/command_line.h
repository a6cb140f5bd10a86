// What commands make of what their user types: flags, names, numbers and paths;
// and how they say that it is wrong.
#ifndef LOCKSTEP_BASE_COMMAND_LINE_H_
#define LOCKSTEP_BASE_COMMAND_LINE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {

// What the user means by `path`. `bazel run` starts programs in a folder of its
// own and names the user's in BUILD_WORKING_DIRECTORY: a relative path is taken
// from there. Where that is not set, and for absolute and empty paths, this is
// `path` itself.
std::string UserPath(const std::string& path);

// Makes the user's folder the current one, and takes BUILD_WORKING_DIRECTORY
// out of the environment: it would mislead a child that has gone elsewhere.
// Errors: the file system's, naming the variable and the folder.
absl::Status EnterUserDirectory();

// Reads absl flags from the front of `arguments` (without the program's name)
// and returns the command that follows: everything after the first "--", or
// from the first argument that is not a flag; empty if there is none. Flags are
// written --name=value, --name value, and --name or --noname for booleans.
//
// absl::ParseCommandLine takes flags from anywhere and exits by itself; here
// the command's own flags stay its own, and the caller chooses the exit status.
// Errors: kInvalidArgument, one line that names the flag.
absl::StatusOr<std::vector<std::string>> ParseFlagsBeforeCommand(
    std::span<const std::string> arguments);

// The same for a program that runs no command: also kInvalidArgument if
// anything follows the flags.
absl::Status ParseFlags(std::span<const std::string> arguments);

// Names that a flag takes, and what each stands for.
template <typename T>
using NamedValues = std::vector<std::pair<const char*, T>>;

// Errors: kInvalidArgument, beginning with the flag and listing the names.
template <typename T>
absl::StatusOr<T> ParseName(absl::string_view flag, absl::string_view text,
                            const NamedValues<T>& all) {
  std::string known;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", text, "' is not one of ", known));
}

// Every item of a comma-separated list once, in the order given.
template <typename T>
absl::StatusOr<std::vector<T>> ParseNames(absl::string_view flag,
                                          absl::string_view text,
                                          const NamedValues<T>& all) {
  std::vector<T> items;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(const T item, ParseName(flag, name, all));
    if (std::find(items.begin(), items.end(), item) == items.end()) {
      items.push_back(item);
    }
  }
  return items;
}

// Error: kInvalidArgument unless low <= value <= high.
inline absl::Status CheckRange(absl::string_view flag, int64_t value,
                               int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not between ", low, " and ", high));
}

// Error: kInvalidArgument unless 0 < seconds < kMostSeconds; NaN is neither.
inline constexpr double kMostSeconds = 1e6;
inline absl::Status CheckSeconds(absl::string_view flag, double seconds) {
  if (seconds > 0 && seconds < kMostSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", seconds, " is not above 0 and below ", kMostSeconds));
}

// Exit statuses.
inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;

// Prints the error in one line, which begins with the command's name, and
// returns the exit status: kUsageError for a message that begins with a flag,
// else kFailure.
int Fail(absl::string_view command, const absl::Status& status);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COMMAND_LINE_H_
