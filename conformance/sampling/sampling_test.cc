// Every epoch of the grid is what its semantics say, on every rank: each
// semantics x shuffle x drop_tail x drop_last x data set size x world size x
// batch size.
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

class SamplingTest
    : public testing::TestWithParam<std::tuple<SamplingCase, int>> {};

TEST_P(SamplingTest, KeepsItsSemantics) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder({"epochs",
                          absl::StrCat(Name(kind.semantics), " sampler"),
                          world_size, "indices"});
  for (const SamplingCase& c : CasesAt(kind, world_size)) {
    ASSERT_THAT(CheckEpochs(MakeSubject, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grid, SamplingTest,
    testing::Combine(testing::ValuesIn(SamplingKinds()),
                     testing::Range(1, kMaxSamplingRanks + 1)),
    [](const auto& info) {
      return absl::StrCat(KindName(std::get<0>(info.param)), "P",
                          std::get<1>(info.param));
    });

}  // namespace
}  // namespace lockstep
