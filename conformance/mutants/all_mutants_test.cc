// Checks that every mutant of every folder is caught by its own checks, which
// name it and no other mutant. Also checks that every check of every folder has
// a mutant. Each mutant is planted in one case. The folders' own tests try
// their whole grids.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "conformance/mutants/mutants_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAreArray;

std::vector<Mutant> AllMutants() {
  std::vector<Mutant> all;
  for (MutantSuite& suite : AllMutantSuites()) {
    std::ranges::move(suite.mutants, std::back_inserter(all));
  }
  return all;
}

TEST(AllMutantsTest, AreAtLeast240) { EXPECT_GE(AllMutants().size(), 240); }

TEST(AllMutantsTest, EveryCheckHasAMutantAndEveryMutantACheck) {
  for (const MutantSuite& suite : AllMutantSuites()) {
    std::set<std::string> checks, rejecting, names;
    for (const std::string& check : suite.checks) {
      EXPECT_TRUE(checks.insert(check).second) << suite.folder << " " << check;
    }
    for (const Mutant& mutant : suite.mutants) {
      EXPECT_EQ(mutant.folder, suite.folder);
      EXPECT_TRUE(names.insert(mutant.name).second)
          << suite.folder << " has " << mutant.name << " twice";
      EXPECT_FALSE(mutant.checks.empty()) << mutant.name;
      EXPECT_FALSE(mutant.says.empty()) << mutant.name;
      EXPECT_FALSE(mutant.planted.empty()) << mutant.name;
      rejecting.insert(mutant.checks.begin(), mutant.checks.end());
    }
    EXPECT_EQ(rejecting, checks) << suite.folder;
  }
}

TEST(AllMutantsTest, AMutantThatSurvivesOrIsNotNamedShows) {
  Mutant mutant;
  mutant.checks = {"A", "B"};
  mutant.says = "as if";
  EXPECT_FALSE(IsCaught(mutant, {}));
  EXPECT_FALSE(IsCaught(mutant, {.checks = {"A", "C"}, .diagnosis = {}}));
  EXPECT_TRUE(IsCaught(mutant, {.checks = {"B", "C", "A"}, .diagnosis = {}}));
  EXPECT_FALSE(IsNamed(mutant, {.checks = {}, .diagnosis = "as it was"}));
  EXPECT_TRUE(IsNamed(mutant, {.checks = {}, .diagnosis = "0, as if lost"}));
}

// Returns the words that name other mutants of the same folder, except words
// that are part of this mutant's.
std::set<std::string> OtherWords(const Mutant& mutant) {
  static const auto& all = *new std::vector<Mutant>(AllMutants());
  std::set<std::string> words;
  for (const Mutant& other : all) {
    if (other.folder == mutant.folder &&
        mutant.says.find(other.says) == std::string::npos) {
      words.insert(other.says);
    }
  }
  return words;
}

// Returns the words of other mutants that the diagnosis contains too. Such a
// mutant does what the other mutant does, and more, which its own words
// describe.
std::set<std::string> OtherWordsToo(const Mutant& mutant) {
  if (FullName(mutant) == "collectives.WrongRoot") {
    return {" beside the ", "as if nothing had been written"};
  }
  if (FullName(mutant) == "network.HalfGroups") {
    return {"disagree on the running statistics: 1.running_mean[0] is"};
  }
  return {};
}

class PlantedMutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(PlantedMutantTest, IsCaughtAndNamed) {
  const Mutant& mutant = GetParam();
  const auto caught = mutant.plant();
  ASSERT_THAT(caught, IsOk()) << mutant.planted;
  EXPECT_THAT(caught->checks, UnorderedElementsAreArray(mutant.checks))
      << mutant.planted;
  EXPECT_THAT(caught->diagnosis, HasSubstr(mutant.says)) << mutant.planted;
  std::set<std::string> others = OtherWords(mutant);
  for (const std::string& words : OtherWordsToo(mutant)) {
    EXPECT_THAT(caught->diagnosis, HasSubstr(words)) << mutant.planted;
    EXPECT_EQ(others.erase(words), 1) << words;
  }
  for (const std::string& words : others) {
    EXPECT_THAT(caught->diagnosis, Not(HasSubstr(words))) << mutant.planted;
  }
  RecordProperty("diagnosis", caught->diagnosis);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedMutantTest,
                         testing::ValuesIn(AllMutants()), [](const auto& info) {
                           return absl::StrCat(info.param.folder, "_",
                                               info.param.name);
                         });

}  // namespace
}  // namespace lockstep::conformance
