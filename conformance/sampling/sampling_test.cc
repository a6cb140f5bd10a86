// Every epoch of the grid is what its semantics say, on every rank, and can be
// stopped after every step and be gone on with at every world size: each
// semantics x shuffle x drop_tail x drop_last x data set size x world size x
// batch size, or a slice of these (slice.h). The controls are the mutants; that
// each property has one, and none is named for another, is asked of all folders
// at once (conformance/mutants/all_mutants_test.cc).
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/tested_sampler.h"
#include "base/slice.h"
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
