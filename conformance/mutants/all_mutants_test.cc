// Every planted bug of every folder is caught by the checks that are there for
// it, which name it and no other; and no check of any folder is there without a
// bug.
#include "conformance/mutants/all_mutants.h"

#include <algorithm>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const PlantedBug& bug, std::ostream* out) { *out << bug.bug; }

namespace {

using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAreArray;

std::vector<PlantedBug> AllBugs() {
  std::vector<PlantedBug> bugs;
  for (BugSuite& suite : AllBugSuites()) {
    std::move(suite.bugs.begin(), suite.bugs.end(), std::back_inserter(bugs));
  }
  return bugs;
}

TEST(AllMutantsTest, AreAtLeastForty) { EXPECT_GE(AllBugs().size(), 40); }

TEST(AllMutantsTest, EveryCheckHasABugAndEveryBugACheck) {
  for (const BugSuite& suite : AllBugSuites()) {
    std::set<std::string> checks, rejecting, names;
    for (const std::string& check : suite.checks) {
      EXPECT_TRUE(checks.insert(check).second) << suite.folder << " " << check;
    }
    for (const PlantedBug& bug : suite.bugs) {
      EXPECT_EQ(bug.folder, suite.folder);
      EXPECT_TRUE(names.insert(bug.name).second)
          << suite.folder << " has " << bug.name << " twice";
      EXPECT_FALSE(bug.checks.empty()) << bug.name;
      EXPECT_FALSE(bug.says.empty()) << bug.name;
      EXPECT_FALSE(bug.bug.empty()) << bug.name;
      rejecting.insert(bug.checks.begin(), bug.checks.end());
    }
    EXPECT_EQ(rejecting, checks) << suite.folder;
  }
}

TEST(AllMutantsTest, ABugThatSurvivesOrIsNotNamedShows) {
  PlantedBug bug;
  bug.checks = {"A", "B"};
  bug.says = "as if";
  EXPECT_FALSE(IsCaught(bug, {}));
  EXPECT_FALSE(IsCaught(bug, {.checks = {"A", "C"}, .diagnosis = {}}));
  EXPECT_TRUE(IsCaught(bug, {.checks = {"B", "C", "A"}, .diagnosis = {}}));
  EXPECT_FALSE(IsNamed(bug, {.checks = {}, .diagnosis = "as it was"}));
  EXPECT_TRUE(IsNamed(bug, {.checks = {}, .diagnosis = "0, as if lost"}));
}

// What names the other bugs of its folder, where it is not part of what names
// this one.
std::set<std::string> OtherWords(const PlantedBug& bug) {
  static const auto& all = *new std::vector<PlantedBug>(AllBugs());
  std::set<std::string> words;
  for (const PlantedBug& other : all) {
    if (other.folder == bug.folder &&
        bug.says.find(other.says) == std::string::npos) {
      words.insert(other.says);
    }
  }
  return words;
}

// Bugs that do what another does too, and more, which is said after it.
std::set<std::string> OtherWordsToo(const PlantedBug& bug) {
  if (FullName(bug) == "collectives.WrongRoot") {
    return {" beside the ", "as if nothing had been written"};
  }
  if (FullName(bug) == "network.HalfGroups") {
    return {"disagree on the running statistics: 1.running_mean[0] is"};
  }
  return {};
}

class PlantedBugTest : public testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedBugTest, IsCaughtAndNamed) {
  const PlantedBug& bug = GetParam();
  const auto caught = bug.plant();
  ASSERT_THAT(caught, IsOk()) << bug.bug;
  EXPECT_THAT(caught->checks, UnorderedElementsAreArray(bug.checks)) << bug.bug;
  EXPECT_THAT(caught->diagnosis, HasSubstr(bug.says)) << bug.bug;
  std::set<std::string> others = OtherWords(bug);
  for (const std::string& words : OtherWordsToo(bug)) {
    EXPECT_THAT(caught->diagnosis, HasSubstr(words)) << bug.bug;
    EXPECT_EQ(others.erase(words), 1) << words;
  }
  for (const std::string& words : others) {
    EXPECT_THAT(caught->diagnosis, Not(HasSubstr(words))) << bug.bug;
  }
  RecordProperty("diagnosis", caught->diagnosis);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugTest, testing::ValuesIn(AllBugs()),
                         [](const auto& info) {
                           return absl::StrCat(info.param.folder, "_",
                                               info.param.name);
                         });

}  // namespace
}  // namespace lockstep
