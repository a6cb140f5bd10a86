// Every planted bug is rejected by exactly the checks that are there for it,
// with a message that names the right thing; the same run without a bug passes.
#include "conformance/mutants/mutants.h"

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/checks.h"
#include "conformance/trace.h"
#include "conformance/training_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const Mutant& mutant, std::ostream* out) { *out << mutant.bug; }

namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Three ranks: 6, 6 and 5 samples a step, then one each in the last.
RunOptions ThreeRanks() {
  RunOptions options;
  options.world_size = 3;
  return options;
}

// The names of the checks that reject the run, with their messages.
std::set<std::string> Rejecting(const Expectation& want,
                                const std::vector<RankTrace>& ranks,
                                std::string& messages) {
  std::set<std::string> names;
  for (const Check& check : AllChecks()) {
    const absl::Status status = check.run(want, ranks);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    names.insert(check.name);
    absl::StrAppend(&messages, check.name, ": ", std::string(status.message()),
                    "\n");
  }
  return names;
}

TEST(MutantsTest, WithoutABugEveryCheckPasses) {
  const auto ranks = RunTraining(ThreeRanks(), Mutation());
  ASSERT_THAT(ranks, IsOk());
  std::string messages;
  EXPECT_THAT(Rejecting(OneRank(ThreeRanks()), *ranks, messages), IsEmpty())
      << messages;
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
  const auto ranks = RunTraining(ThreeRanks(), mutant.mutation);
  ASSERT_THAT(ranks, IsOk());
  const Expectation want = OneRank(ThreeRanks());
  std::string messages;
  EXPECT_EQ(Rejecting(want, *ranks, messages), mutant.caught_by)
      << mutant.bug << "\n"
      << messages;
  RecordProperty("messages", messages);
  EXPECT_THAT(messages.substr(0, messages.find('\n')), HasSubstr(mutant.says))
      << mutant.bug;
}

INSTANTIATE_TEST_SUITE_P(All, MutantTest, testing::ValuesIn(AllMutants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
