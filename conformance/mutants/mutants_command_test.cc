// Tests the command and the formats of its results.
#include "conformance/mutants/mutants_command.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/subprocess.h"
#include "conformance/mutant.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/write.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

PlantedResult Result(const std::string& folder, const std::string& name,
                     const std::vector<std::string>& checks,
                     const std::string& diagnosis) {
  PlantedResult result;
  result.mutant.folder = folder;
  result.mutant.name = name;
  result.mutant.planted = "samples are lost";
  result.mutant.checks = {"Coverage"};
  result.mutant.says = "is lost";
  result.caught = {checks, diagnosis};
  result.seconds = 1.5;
  return result;
}

std::vector<PlantedResult> Results() {
  std::vector<PlantedResult> results = {
      Result("sampling", "Named", {"Order", "Coverage"}, "sample 3 is lost"),
      Result("sampling", "Unnamed", {"Coverage"}, "4 of 5"),
      Result("network", "Survivor", {}, ""),
      Result("network", "Elsewhere", {"Order"}, "sample 3 is lost"),
      Result("network", "Failed", {}, "")};
  results[4].error = "DEADLINE_EXCEEDED: rank 1 did not come";
  return results;
}

TEST(MutantsReportTest, SaysWhatBecameOfAMutant) {
  const std::vector<PlantedResult> results = Results();
  EXPECT_EQ(FormatPlanted(results[0]),
            "sampling.Named: samples are lost\n"
            "  caught by Order, Coverage; the cause is named\n"
            "  sample 3 is lost\n");
  EXPECT_THAT(FormatPlanted(results[1]),
              HasSubstr("caught by Coverage; THE CAUSE IS NOT NAMED: the "
                        "diagnosis lacks 'is lost'\n  4 of 5\n"));
  EXPECT_THAT(FormatPlanted(results[2]),
              HasSubstr("SURVIVES: every check accepts it, must be caught by "
                        "Coverage\n"));
  EXPECT_THAT(FormatPlanted(results[3]),
              HasSubstr("SURVIVES: caught by Order, must be caught by "));
  EXPECT_THAT(FormatPlanted(results[4]),
              AllOf(HasSubstr("SURVIVES: it could not be planted\n"),
                    HasSubstr("rank 1 did not come\n")));
}

TEST(MutantsReportTest, KeepsToItsColumns) {
  PlantedResult result = Results()[0];
  for (int i = 0; i < 50; ++i) result.caught.diagnosis += " and more is lost";
  for (const absl::string_view line :
       absl::StrSplit(FormatPlanted(result), '\n')) {
    EXPECT_LE(line.size(), static_cast<size_t>(kTableColumns)) << line;
  }
}

TEST(MutantsReportTest, AddsUpByFolder) {
  const std::vector<PlantedResult> results = Results();
  EXPECT_THAT(FormatMutantTotals(results),
              AllOf(HasSubstr("sampling           2       2      1      3.0\n"),
                    HasSubstr("network            3       0      0      4.5\n"),
                    HasSubstr("all                5       2      1      7.5\n"),
                    HasSubstr("Surviving: network.Survivor, network.Elsewhere, "
                              "network.Failed\n"),
                    HasSubstr("Caught, but not named: sampling.Unnamed\n"),
                    Not(HasSubstr("Every mutant"))));
  EXPECT_THAT(FormatMutantTotals({results.data(), 1}),
              AllOf(HasSubstr("Every mutant is caught and named.\n"),
                    Not(HasSubstr("Surviving"))));
}

TEST(MutantsReportTest, HasEveryFieldAsJson) {
  report::Origin origin;
  origin.command = "mutants";
  const std::vector<PlantedResult> results = Results();
  const auto json = nlohmann::json::parse(
      report::JsonText(MutantsDocument(origin, results)), nullptr, false);
  EXPECT_EQ(json["command"], "mutants");
  EXPECT_EQ(json["totals"]["bugs"], 5);
  EXPECT_EQ(json["totals"]["caught"], 2);
  EXPECT_EQ(json["totals"]["named"], 1);
  const auto& first = json["bugs"][0];
  EXPECT_EQ(first["folder"], "sampling");
  EXPECT_EQ(first["name"], "Named");
  EXPECT_EQ(first["planted"], "samples are lost");
  EXPECT_EQ(first["checks"][0], "Coverage");
  EXPECT_EQ(first["caught_by"].size(), 2);
  EXPECT_EQ(first["diagnosis"], "sample 3 is lost");
  EXPECT_EQ(first["says"], "is lost");
  EXPECT_EQ(first["caught"], true);
  EXPECT_EQ(first["named"], true);
  EXPECT_EQ(first["seconds"], 1.5);
  EXPECT_EQ(json["bugs"][2]["caught"], false);
  EXPECT_EQ(json["bugs"][4]["error"], results[4].error);
}

// Returns a mutant whose planting results in `becomes`.
Mutant MutantThatResultsIn(const std::string& name,
                           absl::StatusOr<Caught> becomes) {
  Mutant mutant = Result("control", name, {}, "").mutant;
  mutant.plant = [becomes] { return becomes; };
  return mutant;
}

// Exits as the command does, on mutants of all kinds. Its output goes to
// standard error, which the caller can read.
[[noreturn]] void ExitAsCommand(std::string flag) {
  const MutantSuite suite = MakeSuite(
      "control", std::vector<std::string>{"Coverage"},
      {MutantThatResultsIn("Named", Caught{{"Coverage"}, "sample 3 is lost"}),
       MutantThatResultsIn("Unnamed", Caught{{"Coverage"}, "4 of 5"}),
       MutantThatResultsIn("Survivor", Caught{}),
       MutantThatResultsIn("Failed",
                           absl::UnavailableError("rank 1 has gone"))});
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::string name = "mutants";
  char* const argv[] = {name.data(), flag.data()};
  std::exit(MutantsCommand(argv, {&suite, 1}));
}

TEST(MutantsDeathTest, FailsIfAMutantSurvivesOrIsNotNamed) {
  const struct {
    const char* flag;
    int status;
    const char* says;
  } kRuns[] = {
      {"--name=Named", 0, "Every mutant is caught and named"},
      {"--name=Named,Unnamed", 1, "Caught, but not named: control.Unnamed\n"},
      {"--name=Named,Survivor", 1, "Surviving: control.Survivor\n"},
      {"--name=Named,Failed", 1, "Surviving: control.Failed\n"},
      {"--folder=control", 1, "Surviving: "}};
  for (const auto& run : kRuns) {
    EXPECT_EXIT(ExitAsCommand(run.flag), testing::ExitedWithCode(run.status),
                run.says);
  }
}

SubprocessResult RunMutants(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "conformance/mutants/mutants_main");
  return RunSubprocess(flags, absl::Minutes(1));
}

TEST(MutantsMainTest, PlantsOne) {
  const std::string path = testing::TempDir() + "/mutants.json";
  const SubprocessResult result = RunMutants(
      {"--folder=sampling", "--name=PadsFromTheEnd", "--json=" + path});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out,
              AllOf(StartsWith("sampling.PadsFromTheEnd: padding repeats the "
                               "end of the order, not its start\n"
                               "  caught by Padding; the cause is named\n"),
                    HasSubstr("Every mutant is caught and named.\nWrote ")));
  const auto json =
      nlohmann::json::parse(ReadFile(path).value_or(""), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["totals"]["named"], 1);
  EXPECT_THAT(json["command"].get<std::string>(),
              StartsWith("conformance/mutants/mutants_main --folder="));
}

TEST(MutantsMainTest, TakesNamesWithTheirFolderAndSeveral) {
  const SubprocessResult result = RunMutants(
      {"--list", "--name=training.MeanOfMeans,PadsFromTheEnd,SwappedChunks"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("training.MeanOfMeans: "),
                                HasSubstr("\nsampling.PadsFromTheEnd: "),
                                HasSubstr("\ncollectives.SwappedChunks: "),
                                Not(HasSubstr("network."))));
}

TEST(MutantsMainTest, ListsEveryFolder) {
  const SubprocessResult result = RunMutants({"--list"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, IsEmpty());
  for (const char* folder : {"training", "evaluation", "sampling", "loading",
                             "syncbn", "network", "collectives", "check"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat(folder, ".")));
    const SubprocessResult alone =
        RunMutants({"--list", absl::StrCat("--folder=", folder)});
    EXPECT_THAT(alone.out, StartsWith(absl::StrCat(folder, ".")));
    EXPECT_LT(alone.out.size(), result.out.size());
  }
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(MutantsMainTest, HelpSaysEveryFlag) {
  const SubprocessResult result = RunMutants({"--help"});
  ExpectUsage({result.exit_status, result.out}, "mutants");
}

TEST(MutantsMainTest, AWrongFlagIsOneLine) {
  const struct {
    std::vector<std::string> flags;
    const char* says;
  } kFlags[] = {
      {{"--folder=sampling,loader"},
       "--folder: there is no 'loader'; there are training, "},
      {{"--name=NoSuchBug"}, "--name: there is no 'NoSuchBug'"},
      {{"--json=/no/such/folder/mutants.json"}, "--json: "},
      {{"--no_such_flag"}, "no_such_flag"},
      {{"stray"}, "stray"},
      {{"--folder=,"}, "--folder names no folder"},
      {{"--name=,"}, "--name names no mutant"},
      {{"--list", "--json=x"}, "--json needs what --list leaves out"},
  };
  for (const auto& flag : kFlags) {
    const SubprocessResult result = RunMutants(flag.flags);
    ExpectUsageError({result.exit_status, result.out + result.err}, "mutants",
                     flag.flags[0], flag.says);
  }
}

}  // namespace
}  // namespace lockstep::conformance
