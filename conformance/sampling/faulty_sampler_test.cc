// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the property that is there for it, with a message that
// says so; and the same samplers without a fault pass. That each property has a
// fault, and no fault is named for another, is asked of all folders at once
// (conformance/mutants/all_mutants_test.cc).
#include "conformance/sampling/faulty_sampler.h"

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/sampling/plant_fault.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

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
