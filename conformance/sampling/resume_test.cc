// Every epoch of the grid can be stopped after every step and be gone on with
// at every world size; and a state that is none is refused. The text of states
// is checked in sampler/sampler_state_test.cc.
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

class ResumeTest
    : public testing::TestWithParam<std::tuple<SamplingCase, int>> {};

TEST_P(ResumeTest, GoesOnWhereItStopped) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder({"resuming",
                          absl::StrCat(Name(kind.semantics), " sampler"),
                          world_size, "indices"});
  for (const SamplingCase& c : CasesAt(kind, world_size)) {
    ASSERT_THAT(CheckResuming(MakeSubject, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grid, ResumeTest,
    testing::Combine(testing::ValuesIn(SamplingKinds()),
                     testing::Range(1, kMaxSamplingRanks + 1)),
    [](const auto& info) {
      return absl::StrCat(KindName(std::get<0>(info.param)), "P",
                          std::get<1>(info.param));
    });

}  // namespace
}  // namespace lockstep
