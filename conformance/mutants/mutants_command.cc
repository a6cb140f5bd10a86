// The command's flags, and what it does with them.
#include "conformance/mutants/mutants_command.h"

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/launch/working_directory.h"
#include "conformance/mutants/mutants_report.h"
#include "conformance/mutants/planted_bug.h"
#include "models/file_io.h"
#include "nlohmann/json.hpp"
#include "report/begin_command.h"
#include "report/command_status.h"
#include "report/command_text.h"
#include "report/machine.h"
#include "report/terminal.h"
#include "report/wrap_text.h"

ABSL_FLAG(std::string, folder, "", "see kUsage");
ABSL_FLAG(std::string, name, "", "see kUsage");
ABSL_FLAG(bool, list, false, "see kUsage");
ABSL_FLAG(std::string, json, "", "see kUsage");

namespace lockstep {
namespace {

constexpr char kName[] = "mutants";

constexpr char kUsage[] = R"(mutants [FLAGS]

Plants every bug that the suite is known to catch, each around the product's
parts in a small case in which it must show, and prints which checks caught
it, what they said of it, and whether that names what was planted.

  --folder=NAME,NAME  some of the folders: training, evaluation, sampling,
                      syncbn, network, collectives, check; default: all
  --name=NAME,NAME    some of the bugs, as --list names them, with their folder
                      or without; default: all
  --list              print the bugs and do not plant them
  --json=FILE         also write the table as JSON

Examples
  mutants
  mutants --folder=training --name=SumNotMean

Exit status: 0 if every bug is caught and named; 1 if one survives or is not
named, or for another error; 2 for a wrong flag.
)";

std::set<std::string> ListOf(const std::string& flag) {
  const std::vector<std::string> parts =
      absl::StrSplit(flag, ',', absl::SkipEmpty());
  return {parts.begin(), parts.end()};
}

// A list of nothing, as of an empty variable, is a mistake.
absl::Status CheckFlags() {
  const std::string folder = absl::GetFlag(FLAGS_folder);
  const std::string name = absl::GetFlag(FLAGS_name);
  if (!folder.empty() && ListOf(folder).empty()) {
    return absl::InvalidArgumentError("--folder names no folder");
  }
  if (!name.empty() && ListOf(name).empty()) {
    return absl::InvalidArgumentError("--name names no bug");
  }
  if (absl::GetFlag(FLAGS_list) && !absl::GetFlag(FLAGS_json).empty()) {
    return absl::InvalidArgumentError("--json needs what --list leaves out");
  }
  return absl::OkStatus();
}

// Those of --folder.
absl::StatusOr<std::vector<PlantedBug>> BugsOfFolders(
    std::span<const BugSuite> suites) {
  std::set<std::string> wanted = ListOf(absl::GetFlag(FLAGS_folder));
  const bool all = wanted.empty();
  std::vector<PlantedBug> bugs;
  std::vector<std::string> folders;
  for (const BugSuite& suite : suites) {
    folders.push_back(suite.folder);
    if (!all && wanted.erase(suite.folder) == 0) continue;
    bugs.insert(bugs.end(), suite.bugs.begin(), suite.bugs.end());
  }
  if (wanted.empty()) return bugs;
  return absl::InvalidArgumentError(
      absl::StrCat("--folder: there is no '", *wanted.begin(), "'; there are ",
                   absl::StrJoin(folders, ", ")));
}

// Those of --folder that --name names.
absl::StatusOr<std::vector<PlantedBug>> BugsFromFlags(
    std::span<const BugSuite> suites) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<PlantedBug> bugs,
                            BugsOfFolders(suites));
  const std::set<std::string> wanted = ListOf(absl::GetFlag(FLAGS_name));
  if (wanted.empty()) return bugs;
  std::set<std::string> missing = wanted;
  std::erase_if(bugs, [&](const PlantedBug& bug) {
    missing.erase(bug.name);
    missing.erase(FullName(bug));
    return !wanted.contains(bug.name) && !wanted.contains(FullName(bug));
  });
  if (missing.empty()) return bugs;
  return absl::InvalidArgumentError(
      absl::StrCat("--name: there is no '", *missing.begin(),
                   "' in the folders; --list prints what there is"));
}

PlantedResult Plant(const PlantedBug& bug) {
  PlantedResult result = {.bug = bug, .caught = {}, .error = {}};
  const absl::Time start = absl::Now();
  absl::StatusOr<Caught> caught = bug.plant();
  result.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (caught.ok()) {
    result.caught = *std::move(caught);
  } else {
    result.error = caught.status().ToString();
  }
  return result;
}

// Bytes that are no UTF-8, as of a path, are replaced.
std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

// Whether every bug is caught and named.
absl::StatusOr<bool> Run(const std::vector<PlantedBug>& bugs,
                         const std::string& command_text) {
  LOCKSTEP_RETURN_IF_ERROR(CheckNotLaunched());
  const std::string json = UserPath(absl::GetFlag(FLAGS_json));
  if (!json.empty()) {
    const absl::Status status = CheckReplaceable(json);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("--json: ", status.message()));
    }
  }
  MutantsReport report;
  report.command = command_text;
  report.machine = DescribeMachine();
  report.created = TimeStamp();
  report.commit = CommitText();
  for (const PlantedBug& bug : bugs) {
    ShowProgress(absl::StrCat("bug ", report.results.size() + 1, " of ",
                              bugs.size(), ", ", FullName(bug)));
    report.results.push_back(Plant(bug));
    ShowProgress("");
    Print(FormatPlanted(report.results.back()) + "\n");
  }
  Print(FormatMutantTotals(report.results));
  if (!json.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(json, JsonText(MutantsJson(report))));
    Print(absl::StrCat("Wrote ", json, "\n"));
  }
  return MutantTotalsOf(report.results).named ==
         static_cast<int>(report.results.size());
}

}  // namespace

int MutantsCommand(std::span<char* const> argv,
                   std::span<const BugSuite> suites) {
  const std::optional<int> ended = BeginCommand(kName, kUsage, argv);
  if (ended.has_value()) return *ended;
  const absl::Status together = CheckFlags();
  if (!together.ok()) return Fail(kName, together);
  const auto bugs = BugsFromFlags(suites);
  if (!bugs.ok()) return Fail(kName, bugs.status());
  if (absl::GetFlag(FLAGS_list)) {
    for (const PlantedBug& bug : *bugs) {
      Print(
          WrapText(absl::StrCat(FullName(bug), ": ", bug.bug), kTableColumns));
    }
    return 0;
  }
  const auto holds = Run(*bugs, CommandText("//conformance:mutants", argv));
  if (!holds.ok()) return Fail(kName, holds.status());
  return *holds ? 0 : kFailure;
}

}  // namespace lockstep
