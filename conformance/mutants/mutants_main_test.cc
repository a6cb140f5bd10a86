// The command `mutants`.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/testing/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr absl::Duration kDeadline = absl::Minutes(1);

struct Result {
  int status = 0;
  std::string out, err;
};

Result RunProgram(const std::string& command, std::vector<std::string> flags) {
  flags.insert(flags.begin(), "conformance/mutants/" + command);
  ChildProcess mutants(flags, {});
  Result result;
  result.status = mutants.Wait(kDeadline);
  result.out = mutants.out();
  result.err = mutants.err();
  return result;
}

Result RunMutants(const std::vector<std::string>& flags) {
  return RunProgram("mutants_main", flags);
}

TEST(MutantsMainTest, FailsIfABugSurvivesOrIsNotNamed) {
  EXPECT_EQ(RunProgram("control_main", {"--name=Named"}).status, 0);
  const Result unnamed = RunProgram("control_main", {"--name=Named,Unnamed"});
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_THAT(unnamed.out,
              HasSubstr("\nCaught, but not named: control.Unnamed\n"));
  for (const std::string name : {"Survivor", "Failed"}) {
    const Result result = RunProgram("control_main", {"--name=Named," + name});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.out, HasSubstr("\nSurviving: control." + name + "\n"));
  }
  EXPECT_EQ(RunProgram("control_main", {}).status, 1);
}

TEST(MutantsMainTest, PlantsOne) {
  const std::string path = testing::TempDir() + "/mutants.json";
  const Result result = RunMutants(
      {"--folder=sampling", "--name=PadsFromTheEnd", "--json=" + path});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out,
              AllOf(StartsWith("sampling.PadsFromTheEnd: padding repeats the "
                               "end of the order, not its start\n"
                               "  caught by Padding; the cause is named\n"),
                    HasSubstr("Every bug is caught and named.\nWrote ")));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(
      std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["totals"]["named"], 1);
  EXPECT_THAT(json["command"].get<std::string>(),
              StartsWith("conformance/mutants/mutants_main --folder="));
}

TEST(MutantsMainTest, TakesNamesWithTheirFolderAndSeveral) {
  const Result result = RunMutants(
      {"--list", "--name=training.MeanOfMeans,PadsFromTheEnd,SwappedChunks"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("training.MeanOfMeans: "),
                                HasSubstr("\nsampling.PadsFromTheEnd: "),
                                HasSubstr("\ncollectives.SwappedChunks: "),
                                Not(HasSubstr("network."))));
}

TEST(MutantsMainTest, ListsEveryFolder) {
  const Result result = RunMutants({"--list"});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, IsEmpty());
  for (const char* folder : {"training", "evaluation", "sampling", "syncbn",
                             "network", "collectives", "check"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat(folder, ".")));
    const Result alone =
        RunMutants({"--list", absl::StrCat("--folder=", folder)});
    EXPECT_THAT(alone.out, StartsWith(absl::StrCat(folder, ".")));
    EXPECT_LT(alone.out.size(), result.out.size());
  }
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(MutantsMainTest, HelpSaysEveryFlag) {
  const Result result = RunMutants({"--help"});
  EXPECT_EQ(result.status, 0);
  for (const char* flag : {"--folder=", "--name=", "--list", "--json="}) {
    EXPECT_THAT(result.out, HasSubstr(flag));
  }
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
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
      {{"--name=,"}, "--name names no bug"},
      {{"--list", "--json=x"}, "--json needs what --list leaves out"},
  };
  for (const auto& flag : kFlags) {
    const Result result = RunMutants(flag.flags);
    EXPECT_EQ(result.status, 2) << flag.says << result.err;
    EXPECT_THAT(result.err,
                AllOf(StartsWith("mutants: "), HasSubstr(flag.says)));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty()) << flag.says;
  }
}

}  // namespace
}  // namespace lockstep
