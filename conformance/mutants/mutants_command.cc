#include "conformance/mutants/mutants_command.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "collectives/groups/rank_environment.h"
#include "conformance/check/judge/judge_mutants.h"
#include "conformance/collectives/collective_mutants.h"
#include "conformance/cuda/gpu_mutants.h"
#include "conformance/loading/loading_checks.h"
#include "conformance/loading/loading_mutants.h"
#include "conformance/mutant.h"
#include "conformance/network/network_mutants.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/training/evaluation.h"
#include "conformance/training/mutants.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(
    std::string, folder, "",
    "plant only the mutants of these folders: training, evaluation, "
    "sampling, loading, syncbn, network, cuda, collectives, check; default: "
    "all");
ABSL_FLAG(std::string, name, "",
          "plant only these mutants, named as in --list, with their folder or "
          "without; default: all");
ABSL_FLAG(bool, list, false, "print the mutants without planting them");
ABSL_FLAG(std::string, json, "", "also write the table as JSON to this file");

namespace lockstep::conformance {
namespace {

// Returns the text wrapped, with each line indented by two spaces.
std::string Indented(const std::string& text) {
  return absl::StrCat("  ", WrapText(text, kTableColumns, /*margin=*/2));
}

std::string DescribeOutcome(const PlantedResult& result) {
  if (!result.error.empty()) return "SURVIVES: it could not be planted";
  const std::string checks =
      result.caught.checks.empty()
          ? "every check accepts it"
          : absl::StrCat("caught by ",
                         absl::StrJoin(result.caught.checks, ", "));
  if (!result.is_caught()) {
    return absl::StrCat("SURVIVES: ", checks, ", must be caught by ",
                        absl::StrJoin(result.mutant.checks, ", "));
  }
  return result.is_named()
             ? absl::StrCat(checks, "; the cause is named")
             : absl::StrCat(checks,
                            "; THE CAUSE IS NOT NAMED: the diagnosis lacks '",
                            result.mutant.says, "'");
}

// Returns the results of the first folder. `results` are sorted by folder.
std::span<const PlantedResult> FirstFolder(
    std::span<const PlantedResult> results) {
  const auto other = std::find_if(
      results.begin(), results.end(), [&](const PlantedResult& result) {
        return result.mutant.folder != results[0].mutant.folder;
      });
  return results.first(static_cast<size_t>(other - results.begin()));
}

void AppendRow(const std::string& name, std::span<const PlantedResult> results,
               std::string& out) {
  const MutantTotals totals = MutantTotalsOf(results);
  absl::StrAppendFormat(&out, "%-12s %7d %7d %6d %8.1f\n", name, totals.mutants,
                        totals.caught, totals.named, totals.seconds);
}

Usage MutantsUsage() {
  return {.command = "mutants",
          .introduction = R"(mutants [FLAGS]

Plants every mutant that the suite is known to catch, each around the product's
parts in a small case in which it must show. Prints which checks caught the
mutant, their diagnosis, and whether the diagnosis names the planted mistake.
)",
          .sections = {{"", "folder=NAME,NAME name=NAME,NAME list json=FILE"}},
          .ending = R"(Examples
  mutants
  mutants --folder=training --name=SumNotMean

Exit status: 0 if every mutant is caught and named; 1 if one survives or is
not named, or for another error; 2 for a wrong flag.
)"};
}

std::set<std::string> ListOf(const std::string& flag) {
  const std::vector<std::string> parts =
      absl::StrSplit(flag, ',', absl::SkipEmpty());
  return {parts.begin(), parts.end()};
}

// An empty list, as from an empty variable, is a mistake.
absl::Status CheckFlags() {
  const std::string folder = absl::GetFlag(FLAGS_folder);
  const std::string name = absl::GetFlag(FLAGS_name);
  if (!folder.empty() && ListOf(folder).empty()) {
    return absl::InvalidArgumentError("--folder names no folder");
  }
  if (!name.empty() && ListOf(name).empty()) {
    return absl::InvalidArgumentError("--name names no mutant");
  }
  if (absl::GetFlag(FLAGS_list) && !absl::GetFlag(FLAGS_json).empty()) {
    return absl::InvalidArgumentError("--json needs what --list leaves out");
  }
  return absl::OkStatus();
}

// Returns the mutants of --folder.
absl::StatusOr<std::vector<Mutant>> MutantsOfFolders(
    std::span<const MutantSuite> suites) {
  std::set<std::string> wanted = ListOf(absl::GetFlag(FLAGS_folder));
  const bool all = wanted.empty();
  std::vector<Mutant> mutants;
  std::vector<std::string> folders;
  for (const MutantSuite& suite : suites) {
    folders.push_back(suite.folder);
    if (!all && wanted.erase(suite.folder) == 0) continue;
    mutants.insert(mutants.end(), suite.mutants.begin(), suite.mutants.end());
  }
  if (wanted.empty()) return mutants;
  return absl::InvalidArgumentError(
      absl::StrCat("--folder: there is no '", *wanted.begin(), "'; there are ",
                   absl::StrJoin(folders, ", ")));
}

// Returns the mutants of --folder that --name names.
absl::StatusOr<std::vector<Mutant>> MutantsFromFlags(
    std::span<const MutantSuite> suites) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Mutant> mutants,
                            MutantsOfFolders(suites));
  const std::set<std::string> wanted = ListOf(absl::GetFlag(FLAGS_name));
  if (wanted.empty()) return mutants;
  std::set<std::string> missing = wanted;
  std::erase_if(mutants, [&](const Mutant& mutant) {
    missing.erase(mutant.name);
    missing.erase(FullName(mutant));
    return !wanted.contains(mutant.name) && !wanted.contains(FullName(mutant));
  });
  if (missing.empty()) return mutants;
  return absl::InvalidArgumentError(
      absl::StrCat("--name: there is no '", *missing.begin(),
                   "' in the folders; --list prints what there is"));
}

PlantedResult Plant(const Mutant& mutant) {
  PlantedResult result = {.mutant = mutant, .caught = {}, .error = {}};
  const absl::Time start = absl::Now();
  absl::StatusOr<Caught> caught = mutant.plant();
  result.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (caught.ok()) {
    result.caught = *std::move(caught);
  } else {
    result.error = caught.status().ToString();
  }
  return result;
}

// Plants the mutants and prints the results. Returns the exit status.
absl::StatusOr<int> PlantAll(const std::vector<Mutant>& mutants,
                             std::span<char* const> argv) {
  LOCKSTEP_RETURN_IF_ERROR(CheckNotLaunched());
  const std::string json = absl::GetFlag(FLAGS_json);
  LOCKSTEP_RETURN_IF_ERROR(CheckJsonPath(json));
  const report::Origin origin = report::OriginOf("//conformance:mutants", argv);
  std::vector<PlantedResult> results;
  for (const Mutant& mutant : mutants) {
    ShowProgress(absl::StrCat("mutant ", results.size() + 1, " of ",
                              mutants.size(), ", ", FullName(mutant)));
    results.push_back(Plant(mutant));
    ShowProgress("");
    Print(FormatPlanted(results.back()) + "\n");
  }
  Print(FormatMutantTotals(results));
  LOCKSTEP_RETURN_IF_ERROR(
      WriteJsonFile(json, report::JsonText(MutantsDocument(origin, results))));
  return MutantTotalsOf(results).named == static_cast<int>(results.size())
             ? 0
             : kFailure;
}

}  // namespace

std::vector<MutantSuite> AllMutantSuites() {
  return {TrainingMutants(), EvaluationMutants(), SamplingMutants(),
          LoadingMutants(),  BatchNormMutants(),  NetworkMutants(),
          GpuMutants(),      CollectiveMutants(), JudgeMutants()};
}

MutantTotals MutantTotalsOf(std::span<const PlantedResult> results) {
  MutantTotals totals;
  for (const PlantedResult& result : results) {
    ++totals.mutants;
    totals.caught += result.is_caught();
    totals.named += result.is_named();
    totals.seconds += result.seconds;
  }
  return totals;
}

std::string FormatPlanted(const PlantedResult& result) {
  return absl::StrCat(
      WrapText(
          absl::StrCat(FullName(result.mutant), ": ", result.mutant.planted),
          kTableColumns),
      Indented(DescribeOutcome(result)),
      Indented(result.error.empty() ? result.caught.diagnosis : result.error));
}

std::string FormatMutantTotals(std::span<const PlantedResult> results) {
  std::string out = absl::StrFormat("%-12s %7s %7s %6s %8s\n", "folder",
                                    "mutants", "caught", "named", "seconds");
  for (auto rest = results; !rest.empty();) {
    const std::span<const PlantedResult> folder = FirstFolder(rest);
    AppendRow(folder[0].mutant.folder, folder, out);
    rest = rest.subspan(folder.size());
  }
  AppendRow("all", results, out);
  std::vector<std::string> surviving, unnamed;
  for (const PlantedResult& result : results) {
    if (!result.is_caught()) {
      surviving.push_back(FullName(result.mutant));
    } else if (!result.is_named()) {
      unnamed.push_back(FullName(result.mutant));
    }
  }
  if (surviving.empty() && unnamed.empty()) {
    return absl::StrCat(out, "\nEvery mutant is caught and named.\n");
  }
  absl::StrAppend(&out, "\n");
  if (!surviving.empty()) {
    absl::StrAppend(&out, WrapText(absl::StrCat("Surviving: ",
                                                absl::StrJoin(surviving, ", ")),
                                   kTableColumns));
  }
  if (!unnamed.empty()) {
    absl::StrAppend(&out, WrapText(absl::StrCat("Caught, but not named: ",
                                                absl::StrJoin(unnamed, ", ")),
                                   kTableColumns));
  }
  return out;
}

report::Document MutantsDocument(const report::Origin& origin,
                                 std::span<const PlantedResult> results) {
  report::Value::Array mutants;
  for (const PlantedResult& result : results) {
    mutants.push_back({{"folder", result.mutant.folder},
                       {"name", result.mutant.name},
                       {"planted", result.mutant.planted},
                       {"checks", result.mutant.checks},
                       {"caught_by", result.caught.checks},
                       {"diagnosis", result.caught.diagnosis},
                       {"says", result.mutant.says},
                       {"caught", result.is_caught()},
                       {"named", result.is_named()},
                       {"error", result.error},
                       {"seconds", result.seconds}});
  }
  const MutantTotals totals = MutantTotalsOf(results);
  report::Document document;
  document.name = "lockstep.mutants";
  document.origin = origin;
  document.data = {{"totals",
                    {{"bugs", totals.mutants},
                     {"caught", totals.caught},
                     {"named", totals.named}}},
                   {"bugs", std::move(mutants)}};
  return document;
}

int MutantsCommand(std::span<char* const> argv,
                   std::span<const MutantSuite> suites) {
  const auto run = [suites](std::span<char* const> all) -> absl::StatusOr<int> {
    LOCKSTEP_RETURN_IF_ERROR(CheckFlags());
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Mutant> mutants,
                              MutantsFromFlags(suites));
    if (!absl::GetFlag(FLAGS_list)) return PlantAll(mutants, all);
    for (const Mutant& mutant : mutants) {
      Print(WrapText(absl::StrCat(FullName(mutant), ": ", mutant.planted),
                     kTableColumns));
    }
    return 0;
  };
  return CommandMain(MutantsUsage(), argv, run);
}

}  // namespace lockstep::conformance
