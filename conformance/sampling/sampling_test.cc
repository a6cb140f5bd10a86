// Every epoch of the grid is what its semantics say, on every rank, and can be
// stopped after every step and be gone on with at every world size: each
// semantics x shuffle x drop_tail x drop_last x data set size x world size x
// batch size, or a slice of these (slice.h). The controls are the mutants; that
// each property has one, and none is named for another, is asked of all folders
// at once (conformance/mutants/all_mutants_test.cc).
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using KindAndRanks = std::tuple<SamplingCase, int>;

std::string NameOf(const testing::TestParamInfo<KindAndRanks>& info) {
  return absl::StrCat(KindName(std::get<0>(info.param)), "P",
                      std::get<1>(info.param));
}

const auto kGrid = testing::Combine(testing::ValuesIn(SamplingKinds()),
                                    testing::Range(1, kMaxSamplingRanks + 1));

ClaimPlace PlaceOf(const char* claim, const KindAndRanks& parameter) {
  const auto& [kind, world_size] = parameter;
  return {claim, absl::StrCat(Name(kind.semantics), " sampler"), world_size,
          "indices"};
}

class SamplingTest : public testing::TestWithParam<KindAndRanks> {};

TEST_P(SamplingTest, KeepsItsSemantics) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("epochs", GetParam()));
  for (const SamplingCase& c :
       SliceOf(CasesAt(kind, world_size), 4, world_size)) {
    ASSERT_THAT(CheckEpochs(MakeTestedSampler, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, SamplingTest, kGrid, NameOf);

class ResumeTest : public testing::TestWithParam<KindAndRanks> {};

// And a state that is none is refused. The text of states is checked in
// sampler/.
TEST_P(ResumeTest, GoesOnWhereItStopped) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("resuming", GetParam()));
  for (const SamplingCase& c :
       SliceOf(CasesAt(kind, world_size), 10, world_size)) {
    ASSERT_THAT(CheckResuming(MakeTestedSampler, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, ResumeTest, kGrid, NameOf);

TEST(SamplingMutantsTest, WithoutAMutationPasses) {
  const SamplerFactory make = MakeMutated({});
  for (const SamplingCase& c : SliceOf(SamplingMutantCases(), 10)) {
    ASSERT_THAT(CheckSampler(make, c), IsOk());
  }
}

// A cause gives every index in its place: it is not named where rank 0
// exchanges two.
TEST(SamplingMutantsTest, AreNotNamedWhereTwoIndicesAreExchanged) {
  const std::set<std::string> causes = {
      "DropsTheTail",  "KeepsTheTail",      "GivesTheTailToTheLastRank",
      "PadsInExact",   "DrawsTheSameShard", "DrawsAnothersSample",
      "SeedsByRank",   "StridesByBlocks",   "ReversesTheRanks",
      "DealsOneByOne", "ShufflesByKey",     "SeedsByTheNextEpoch"};
  size_t tried = 0;
  for (auto& [mutant, mutation] : AllSamplingMutants()) {
    if (causes.count(mutant.name) == 0) continue;
    ++tried;
    mutation.swaps = true;
    std::vector<SamplingCase> cases = SamplingMutantCases();
    std::erase_if(cases, [&](const SamplingCase& c) {
      // Rank 0 has a whole batch, of two at least, whatever becomes of a tail.
      return c.world_size < 2 || c.batch_size < 2 ||
             c.dataset_size / c.world_size < c.batch_size ||
             !mutation.ShowsIn(c);
    });
    ASSERT_FALSE(cases.empty()) << mutant.name;
    for (const SamplingCase& c : SliceOf(cases, 4)) {
      const absl::Status status = CheckEpochs(MakeMutated(mutation), c);
      EXPECT_FALSE(status.ok()) << mutant.name;
      EXPECT_FALSE(absl::StrContains(status.message(), mutant.says))
          << mutant.name << ": " << status;
    }
  }
  EXPECT_EQ(tried, causes.size());
}

class SamplingMutantTest : public testing::TestWithParam<Mutant> {};

// In every case in which it must show, first by the property that is there for
// it, with a message that says so.
TEST_P(SamplingMutantTest, IsRejectedByWhatIsThereForIt) {
  const auto cases = GetParam().plant_everywhere();
  ASSERT_THAT(cases, IsOk());
  RecordProperty("cases", absl::StrCat(*cases));
  EXPECT_GT(*cases, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SamplingMutantTest,
                         testing::ValuesIn(SamplingMutants().mutants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
