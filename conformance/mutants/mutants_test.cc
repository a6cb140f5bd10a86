// Every planted bug is rejected by exactly the checks that are there for it,
// with a message that names the right thing; the same run without a bug passes.
#include "conformance/mutants/mutants.h"

#include <ostream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/checks.h"
#include "conformance/mutants/plant_mutant.h"
#include "conformance/rejection.h"
#include "conformance/training_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.bug; }

namespace {

using testing::HasSubstr;

TEST(MutantsTest, WithoutABugEveryCheckPasses) {
  const auto rejections = PlantMutation(Mutation());
  ASSERT_THAT(rejections, IsOk());
  EXPECT_TRUE(rejections->empty())
      << (*rejections)[0].check << ": " << (*rejections)[0].message;
}

TEST(MutantsTest, EveryCheckHasAMutantAndEveryMutantACheck) {
  std::set<std::string> checks;
  for (const Check& check : AllChecks()) checks.insert(check.name);
  std::set<std::string> rejecting;
  std::set<std::string> names;
  for (const Mutant& mutant : AllMutants()) {
    EXPECT_TRUE(names.insert(mutant.name).second) << mutant.name << " twice";
    EXPECT_FALSE(mutant.caught_by.empty()) << mutant.name;
    EXPECT_FALSE(mutant.says.empty()) << mutant.name;
    rejecting.insert(mutant.caught_by.begin(), mutant.caught_by.end());
  }
  EXPECT_EQ(rejecting, checks);
}

class MutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(MutantTest, IsRejectedByTheChecksThatAreThereForIt) {
  const Mutant& mutant = GetParam();
  const auto rejections = PlantMutation(mutant.mutation);
  ASSERT_THAT(rejections, IsOk());
  ASSERT_FALSE(rejections->empty()) << mutant.bug;
  std::set<std::string> checks;
  std::string messages;
  for (const Rejection& rejection : *rejections) {
    checks.insert(rejection.check);
    absl::StrAppend(&messages, rejection.check, ": ", rejection.message, "\n");
  }
  EXPECT_EQ(checks, mutant.caught_by) << mutant.bug << "\n" << messages;
  RecordProperty("messages", messages);
  EXPECT_THAT((*rejections)[0].message, HasSubstr(mutant.says)) << mutant.bug;
}

INSTANTIATE_TEST_SUITE_P(All, MutantTest, testing::ValuesIn(AllMutants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
