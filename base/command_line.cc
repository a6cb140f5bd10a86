#include "base/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

ABSL_FLAG(bool, help, false, "print this text; also -h");

namespace lockstep {
namespace {

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

absl::Status SetFlag(absl::CommandLineFlag& flag, const std::string& value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  double number = 0;
  if (flag.IsOfType<absl::Duration>() && absl::SimpleAtod(value, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag.Name(), "=", value, " has no unit; write ",
                     value, "s or 5m"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.Name(), "=", value, ": ", error));
}

// Returns the boolean flag that --noNAME turns off, or null if there is none.
absl::CommandLineFlag* FindNegatedFlag(absl::string_view name) {
  if (!absl::StartsWith(name, "no")) return nullptr;
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name.substr(2));
  return flag != nullptr && flag->IsOfType<bool>() ? flag : nullptr;
}

bool IsInternal(const absl::CommandLineFlag& flag) {
  return absl::StartsWith(flag.Help(), "internal:");
}

// Returns whether users may set the flag. Abseil's own flags and internal flags
// are not shown.
bool IsForUsers(const absl::CommandLineFlag& flag) {
  return !IsInternal(flag) && !absl::StrContains(flag.Filename(), "absl/");
}

// Returns the fewest insertions, removals and replacements of letters, and
// swaps of two neighbours, that turn one word into the other.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  // rows[i][j] is the distance of a's first i letters and b's first j.
  std::vector<std::vector<size_t>> rows(a.size() + 1,
                                        std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      const size_t replaced = a[i - 1] == b[j - 1] ? 0 : 1;
      size_t least = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1,
                               rows[i - 1][j - 1] + replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least = std::min(least, rows[i - 2][j - 2] + 1);
      }
      rows[i][j] = least;
    }
  }
  return rows[a.size()][b.size()];
}

// Returns the flag with this name or alias, or null if there is none.
absl::CommandLineFlag* FindFlag(const Usage& usage, absl::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag != nullptr) return flag;
  for (const auto& [alias, own_name] : usage.aliases) {
    if (alias == name) return absl::FindCommandLineFlag(own_name);
  }
  return nullptr;
}

// Returns the words that a user may write after two dashes, sorted.
std::vector<std::string> FlagNames(const Usage& usage) {
  std::vector<std::string> names;
  for (const auto& [alias, own_name] : usage.aliases) names.push_back(alias);
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsForUsers(*flag)) continue;
    names.emplace_back(name);
    if (flag->IsOfType<bool>()) names.push_back(absl::StrCat("no", name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the flag that a user who wrote `name` probably means: one that
// differs from it in at most a third of its letters. Returns "" if there is
// none.
std::string NearestFlag(const Usage& usage, absl::string_view name) {
  std::string nearest;
  size_t least = name.size() / 3 + 1;
  for (const std::string& candidate : FlagNames(usage)) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= least) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

// argument: as the user wrote it, up to its value.
absl::Status UnknownFlag(const Usage& usage, absl::string_view argument) {
  const absl::string_view name =
      argument.substr(absl::StartsWith(argument, "--") ? 2 : 1);
  if (name.size() <= 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument, " is not a flag, or needs a value; see --help"));
  }
  const std::string nearest = NearestFlag(usage, FlagName(argument));
  return absl::InvalidArgumentError(absl::StrCat(
      "--", name, " is not a flag; ",
      nearest.empty() ? "see --help"
                      : absl::StrCat("did you mean --", nearest, "?")));
}

// Sets the flags of one command line.
class FlagParser {
 public:
  explicit FlagParser(const Usage& usage) : usage_(usage) {}

  // Sets the flag at arguments[0]; returns how many arguments the flag used.
  absl::StatusOr<size_t> Parse(std::span<const std::string> arguments);

 private:
  // Returns kInvalidArgument if the flag was already set by another name.
  absl::Status CheckName(const absl::CommandLineFlag& flag,
                         const std::string& name);

  const Usage& usage_;
  // Keyed by the flag's own name.
  std::map<std::string, std::string> typed_names_;
};

absl::Status FlagParser::CheckName(const absl::CommandLineFlag& flag,
                                   const std::string& name) {
  // The flags before an internal one are the user's; the program adds the flags
  // after it.
  if (IsInternal(flag)) typed_names_.clear();
  const std::string& first =
      typed_names_.try_emplace(std::string(flag.Name()), name).first->second;
  if (first == name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", first, " and --", name, " are one flag; give only one of them"));
}

absl::StatusOr<size_t> FlagParser::Parse(
    std::span<const std::string> arguments) {
  const size_t equals = arguments[0].find('=');
  const std::string written = arguments[0].substr(0, equals);
  const std::string name = written == "-h" ? "help" : FlagName(written);
  absl::CommandLineFlag* flag = FindFlag(usage_, name);
  if (flag == nullptr) {
    flag = equals == std::string::npos ? FindNegatedFlag(name) : nullptr;
    if (flag == nullptr) return UnknownFlag(usage_, written);
    LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, "false"));
    return 1;
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckName(*flag, name));
  if (equals != std::string::npos) {
    LOCKSTEP_RETURN_IF_ERROR(SetFlag(*flag, arguments[0].substr(equals + 1)));
    return 1;
  }
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

// Sets the flags at the front of `arguments` and returns the arguments after
// them. absl::ParseCommandLine accepts flags anywhere and exits by itself. This
// function leaves the command's own flags alone, and its caller chooses the
// exit status.
absl::StatusOr<std::vector<std::string>> ParseFlagsBeforeCommand(
    const Usage& usage, std::span<const std::string> arguments) {
  FlagParser parser(usage);
  while (!arguments.empty()) {
    if (arguments[0] == "--") {
      arguments = arguments.subspan(1);
      break;
    }
    if (!absl::StartsWith(arguments[0], "-") || arguments[0] == "-") break;
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t taken, parser.Parse(arguments));
    arguments = arguments.subspan(taken);
  }
  return std::vector<std::string>(arguments.begin(), arguments.end());
}

constexpr int kUsageColumns = 80;
constexpr int kHelpColumn = 27;  // The column where the help of a flag begins.

// Returns the text for one flag of a usage; `shown` is the text after its
// dashes.
std::string FlagText(absl::string_view shown, absl::string_view help) {
  const std::string margin(kHelpColumn, ' ');
  std::string text = absl::StrCat("  --", shown, " ");
  const bool fits = text.size() <= kHelpColumn;
  text.resize(fits ? kHelpColumn : text.size() - 1, ' ');
  if (!fits) absl::StrAppend(&text, "\n", margin);
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    if (!first) absl::StrAppend(&text, margin);
    first = false;
    const size_t gap = line.find("  ");
    const size_t item = gap == line.npos ? 0 : line.find_first_not_of(' ', gap);
    absl::StrAppend(&text, line.substr(0, item),
                    WrapText(line.substr(item), kUsageColumns,
                             kHelpColumn + static_cast<int>(item)));
  }
  return text;
}

// Returns the line that names the flag's aliases, or "" if there are none.
std::string AliasesText(const Usage& usage, absl::string_view flag) {
  std::string text;
  for (const auto& [alias, own_name] : usage.aliases) {
    if (own_name != flag) continue;
    absl::StrAppend(&text, text.empty() ? "\nalso --" : ", --", alias);
  }
  return text;
}

// Returns the text of the flag that `entry` of a section shows. Adds the flag's
// name to `listed`.
absl::StatusOr<std::string> EntryText(const Usage& usage,
                                      const std::string& entry,
                                      std::set<std::string>& listed) {
  const std::string name = entry.substr(0, entry.find('='));
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr) flag = FindNegatedFlag(name);
  if (flag == nullptr) {
    return absl::InternalError(
        absl::StrCat("the usage lists --", name, ", which is not a flag"));
  }
  listed.emplace(flag->Name());
  return FlagText(name != entry || flag->IsOfType<bool>()
                      ? entry
                      : absl::StrCat(name, "=", flag->DefaultValue()),
                  absl::StrCat(absl::StrReplaceAll(flag->Help(), usage.words),
                               AliasesText(usage, flag->Name())));
}

absl::Status CheckAliases(const Usage& usage) {
  for (const auto& [alias, own_name] : usage.aliases) {
    if (absl::FindCommandLineFlag(alias) != nullptr) {
      return absl::InternalError(
          absl::StrCat("the usage's alias --", alias, " is a flag"));
    }
    if (absl::FindCommandLineFlag(own_name) == nullptr) {
      return absl::InternalError(absl::StrCat("the usage's alias --", alias,
                                              " stands for --", own_name,
                                              ", which is not a flag"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllListed(const std::set<std::string>& listed) {
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (name != "help" && !listed.contains(std::string(name)) &&
        IsForUsers(*flag)) {
      return absl::InternalError(
          absl::StrCat("the usage does not list --", name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ResolveUserPath(const std::string& path) {
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

std::string WrapText(absl::string_view text, int columns, int margin) {
  std::string wrapped;
  size_t line = 0;
  for (const absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool fits =
        margin + line + 1 + word.size() <= static_cast<size_t>(columns);
    if (line > 0) wrapped += fits ? " " : "\n" + std::string(margin, ' ');
    line = line > 0 && fits ? line + 1 + word.size() : word.size();
    absl::StrAppend(&wrapped, word);
  }
  return wrapped + "\n";
}

absl::StatusOr<std::string> UsageText(const Usage& usage) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAliases(usage));
  std::set<std::string> listed;
  std::string text = usage.introduction;
  for (const Usage::Section& section : usage.sections) {
    absl::StrAppend(&text, "\n", section.title,
                    section.title.empty() ? "" : "\n");
    const std::vector<std::string> entries =
        absl::StrSplit(section.flags, ' ', absl::SkipEmpty());
    for (const std::string& entry : entries) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string flag,
                                EntryText(usage, entry, listed));
      absl::StrAppend(&text, flag);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckAllListed(listed));
  return absl::StrCat(text, "\n", usage.ending);
}

std::string FlagName(absl::string_view argument) {
  if (!absl::ConsumePrefix(&argument, "-")) return "";
  absl::ConsumePrefix(&argument, "-");
  return absl::StrReplaceAll(argument.substr(0, argument.find('=')),
                             {{"-", "_"}});
}

std::optional<int> BeginCommand(const Usage& usage, std::span<char* const> argv,
                                std::vector<std::string>* command) {
  absl::StatusOr<std::vector<std::string>> rest = ParseFlagsBeforeCommand(
      usage, std::vector<std::string>(argv.begin() + 1, argv.end()));
  if (rest.ok() && !rest->empty() && command == nullptr) {
    rest = absl::InvalidArgumentError(
        absl::StrCat("'", (*rest)[0], "' is not a flag; see --help"));
  }
  if (!rest.ok()) {
    Fail(usage.command, rest.status());
    return kUsageError;
  }
  if (command != nullptr) *command = *std::move(rest);
  if (!absl::GetFlag(FLAGS_help)) return std::nullopt;
  const absl::StatusOr<std::string> text = UsageText(usage);
  if (!text.ok()) return Fail(usage.command, text.status());
  std::fputs(text->c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

int Fail(absl::string_view command, const absl::Status& status) {
  const std::string line = absl::StrCat(command, ": ", status.message(), "\n");
  std::fputs(line.c_str(), stderr);
  return absl::StartsWith(status.message(), "--") ? kUsageError : kFailure;
}

}  // namespace lockstep
