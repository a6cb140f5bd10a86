// How a command begins and ends: its flags, the usage that --help prints, its
// errors and its exit statuses. Parses the names, numbers and paths that the
// user types.
#ifndef LOCKSTEP_BASE_COMMAND_LINE_H_
#define LOCKSTEP_BASE_COMMAND_LINE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {

// Returns the path that the user means by `path`. `bazel run` starts programs
// in a folder of its own and names the user's folder in
// BUILD_WORKING_DIRECTORY. A relative path is resolved against that folder. If
// the variable is not set, or if `path` is absolute or empty, returns `path`
// itself.
std::string ResolveUserPath(const std::string& path);

// Makes the user's folder the current one. Removes BUILD_WORKING_DIRECTORY from
// the environment, because a child process in another folder would resolve
// paths against the wrong folder. Errors: the file system's, naming the
// variable and the folder.
absl::Status EnterUserDirectory();

// The names that a flag accepts, each with its value.
template <typename T>
using NamedValues = std::vector<std::pair<const char*, T>>;

// Returns the value of the name `text`. Errors: kInvalidArgument, with a
// message that begins with the flag and lists the names.
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

// Parses a comma-separated list of names. Returns each item once, in the order
// given. Errors: as of ParseName.
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

// Returns kInvalidArgument with the message "--name=value: what".
template <typename T>
absl::Status FlagError(absl::string_view name, const T& value,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, "=", value, ": ", what));
}

// Returns kInvalidArgument unless low <= value <= high.
inline absl::Status CheckRange(absl::string_view flag, int64_t value,
                               int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not between ", low, " and ", high));
}

// Returns kInvalidArgument unless 0 < seconds < kMostSeconds. NaN is an error.
inline constexpr double kMostSeconds = 1e6;
inline absl::Status CheckSeconds(absl::string_view flag, double seconds) {
  if (seconds > 0 && seconds < kMostSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", seconds, " is not above 0 and below ", kMostSeconds));
}

// Returns `text` with some of its spaces replaced by line ends, so that no line
// is longer than `columns`. A longer word stands alone on its line. Every line
// after the first begins with `margin` spaces; the caller writes the margin of
// the first line. The result ends in a line end.
std::string WrapText(absl::string_view text, int columns, int margin = 0);

// The text that --help prints.
struct Usage {
  struct Section {
    std::string title;  // Empty for no title.

    // The flags of the section, in this order, separated by spaces. "rounds" is
    // shown as --rounds=5, with the flag's default, or as --rounds if the flag
    // is a boolean. "output_dir=DIR" is shown as --output_dir=DIR.
    // "noprefix_output" shows the boolean prefix_output in the form that turns
    // it off.
    std::string flags;
  };

  std::string command;  // The command's name, with which errors begin.
  std::string introduction;
  std::vector<Section> sections;
  std::string ending;

  // Replacements of words in braces. They apply to the help of flags that
  // several commands share: {"{name}", "scaling"}.
  std::vector<std::pair<std::string, std::string>> words = {};

  // Additional names of flags: {"nproc", "world_size"} makes --nproc=2 the same
  // as --world_size=2.
  std::vector<std::pair<std::string, std::string>> aliases = {};
};

// Returns the introduction, the sections and the ending, separated by empty
// lines. The text for a flag is the help of its ABSL_FLAG, wrapped. A line end
// in that help begins a new line. If a line has two spaces, as after an item of
// a list, the text after them stays in the column where it begins.
//
// Errors: kInternal, naming the flag, if a flag of a section or of an alias
// does not exist, if an alias is the name of a flag, or if no section lists a
// flag that exists. A flag whose help begins with "internal:" is not for users
// and needs no section.
absl::StatusOr<std::string> UsageText(const Usage& usage);

// Returns the name of the flag in `argument`, with underscores for dashes:
// "node_rank" for "--node-rank=1". Returns "" if `argument` does not begin with
// a dash.
std::string FlagName(absl::string_view argument);

// Sets the flags from the command line; argv[0] is the program. Flags are
// written --name=value, --name value, and, for booleans, --name or --noname.
// The flags end at the first "--" or at the first argument that is not a flag.
// One dash is accepted in place of two, and names may have dashes for
// underscores. Two names of one flag are an error, unless an internal flag
// stands between them: a program that starts itself as its ranks appends flags
// to those of its user.
//
// Returns nullopt if the command continues, or the exit status if it ends here:
// - 0 after printing the usage for --help or -h, which this function adds to
//   the command's flags.
// - kUsageError after printing an error to standard error. The error names the
//   malformed flag, or the unknown flag and the flag with a similar name.
// - kFailure if UsageText fails.
//
// command: receives the arguments after the flags, if the program runs a
// command. If `command` is null, any argument there is an error.
std::optional<int> BeginCommand(const Usage& usage, std::span<char* const> argv,
                                std::vector<std::string>* command = nullptr);

// Exit statuses.
inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;

// Prints the error in one line, which begins with the command's name. Returns
// the exit status: kUsageError if the message begins with a flag, otherwise
// kFailure.
int Fail(absl::string_view command, const absl::Status& status);

// Implements main(): begins the command and, if the command continues, calls
// run(std::span<char* const> argv). `run` returns an absl::Status, or an
// absl::StatusOr<int> with the exit status. An error of `run` is printed by
// Fail. Returns the exit status.
template <typename Run>
int CommandMain(const Usage& usage, std::span<char* const> argv,
                const Run& run) {
  const std::optional<int> ended = BeginCommand(usage, argv);
  if (ended.has_value()) return *ended;
  const auto result = run(argv);
  if constexpr (std::is_same_v<decltype(run(argv)), absl::Status>) {
    return result.ok() ? 0 : Fail(usage.command, result);
  } else {
    return result.ok() ? *result : Fail(usage.command, result.status());
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COMMAND_LINE_H_
