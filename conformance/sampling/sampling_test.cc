// Every epoch of the grid is what its semantics say, on every rank: each
// semantics x shuffle x drop_tail x drop_last x data set size x world size x
// batch size.
#include <ostream>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/tested_sampler.h"
#include "gmock/gmock.h"
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

// Every epoch of the grid can be stopped after every step and be gone on with
// at every world size; and a state that is none is refused. The text of states
// is checked in sampler/sampler_state_test.cc.
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

// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the property that is there for it, with a message that
// says so; and the same samplers without a fault pass. That each property has a
// fault, and no fault is named for another, is asked of all folders at once
// (conformance/mutants/all_mutants_test.cc).

// How a failing test shows its parameter.
void PrintTo(const SamplingFault& fault, std::ostream* out) {
  *out << fault.bug;
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(FaultySamplerTest, WithoutAFaultPasses) {
  const SubjectFactory make = MakeFaulty({});
  for (const SamplingCase& c : SamplingFaultCases()) {
    ASSERT_THAT(CheckSampler(make, c), IsOk());
  }
}

class SamplingFaultTest : public testing::TestWithParam<SamplingFault> {};

TEST_P(SamplingFaultTest, IsRejectedByWhatIsThereForIt) {
  const SamplingFault& fault = GetParam();
  const SubjectFactory make = MakeFaulty(fault);
  int shown = 0;
  for (const SamplingCase& c : SamplingFaultCases()) {
    if (!MustShow(fault, c)) continue;
    ++shown;
    const absl::Status status = CheckSampler(make, c);
    if (shown == 1) RecordProperty("says", status.ToString());
    ASSERT_THAT(status,
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(StartsWith(absl::StrCat(fault.property, ": ")),
                               HasSubstr(fault.says))))
        << ToString(c) << ": " << fault.bug;
  }
  RecordProperty("cases", shown);
  EXPECT_GT(shown, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SamplingFaultTest,
                         testing::ValuesIn(AllSamplingFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
