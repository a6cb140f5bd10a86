// How a command begins and ends: the flags, names, numbers and paths that its
// user types, the usage that --help prints, errors and exit statuses.
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

// What the user means by `path`. `bazel run` starts programs in a folder of its
// own and names the user's in BUILD_WORKING_DIRECTORY: a relative path is taken
// from there. Where that is not set, and for absolute and empty paths, this is
// `path` itself.
std::string UserPath(const std::string& path);

// Makes the user's folder the current one, and takes BUILD_WORKING_DIRECTORY
// out of the environment: it would mislead a child that has gone elsewhere.
// Errors: the file system's, naming the variable and the folder.
absl::Status EnterUserDirectory();

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

// kInvalidArgument: "--name=value: what".
template <typename T>
absl::Status FlagError(absl::string_view name, const T& value,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, "=", value, ": ", what));
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

// `text` with line ends in place of spaces so that no line is longer than
// `columns`, as far as its words allow. Every line begins after `margin`
// spaces, of which the caller writes those of the first. Ends in a line end.
std::string WrapText(absl::string_view text, int columns, int margin = 0);

// What --help prints.
struct Usage {
  struct Section {
    std::string title;  // "" for none.

    // What the section tells of, in this order, separated by spaces: "rounds"
    // is shown as --rounds=5, with the flag's default, or as --rounds if it is
    // a boolean; "output_dir=DIR" as --output_dir=DIR. "noprefix_output" names
    // a boolean, prefix_output, by the way to turn it off.
    std::string flags;
  };

  std::string command;  // Its name, which errors begin with.
  std::string introduction;
  std::vector<Section> sections;
  std::string ending;

  // What replaces the words in braces in the help of flags that several
  // commands have: {"{name}", "scaling"}.
  std::vector<std::pair<std::string, std::string>> words = {};

  // Further names of flags: {"nproc", "world_size"} makes --nproc=2 the same as
  // --world_size=2.
  std::vector<std::pair<std::string, std::string>> aliases = {};
};

// The introduction, the sections, and the ending, separated by empty lines.
// What is said of a flag is the help of its ABSL_FLAG, wrapped. A line end in
// that help begins a new line, and where a line has two spaces, as after an
// item of a list, what follows them keeps to the column where it begins.
//
// Errors: kInternal, naming the flag, if a flag of a section or of an alias
// does not exist, if an alias is the name of a flag, or if no section tells of
// a flag that exists. The help of a flag that is not for users begins with
// "internal:".
absl::StatusOr<std::string> UsageText(const Usage& usage);

// The name of the flag that `argument` is, with underscores for dashes:
// "node_rank" for "--node-rank=1". "" if `argument` does not begin with a dash.
std::string FlagName(absl::string_view argument);

// Sets the flags from the command line; argv[0] is the program. Flags are
// written --name=value, --name value, and --name or --noname for booleans, and
// end at the first "--", or at the first argument that is not a flag. One dash
// will do, and names may have dashes for underscores. Two names of one flag are
// an error, unless an internal flag stands between them: a program that starts
// itself as its ranks adds flags to those of its user. Returns
// nullopt if the command goes on, and the exit status if it ends here: 0 after
// printing the usage for --help or -h, which this adds to the command's flags;
// kUsageError after naming the unknown flag, and the flag that its name is
// close to, or the malformed flag on standard error;
// kFailure if UsageText fails. `command`: receives what follows the flags, if
// the program runs a command; without it, anything there is an error.
std::optional<int> BeginCommand(const Usage& usage, std::span<char* const> argv,
                                std::vector<std::string>* command = nullptr);

// Exit statuses.
inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;

// Prints the error in one line, which begins with the command's name, and
// returns the exit status: kUsageError for a message that begins with a flag,
// else kFailure.
int Fail(absl::string_view command, const absl::Status& status);

// The whole of main(): begins the command and, if it goes on, calls
// run(std::span<char* const> argv), which returns an absl::Status, or an
// absl::StatusOr<int> with the exit status; fails with its error. Returns the
// exit status.
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
