// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the property that is there for it, with a message that
// says so; and the same samplers without a fault pass.
#include "conformance/sampling/faulty_sampler.h"

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
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

// A part of the grid: sizes that divide each other, that do not, and that are
// below each other.
std::vector<SamplingCase> Cases() {
  constexpr int64_t kDatasetSizes[] = {1, 2, 5, 11, 24, 40};
  constexpr int kWorldSizes[] = {1, 2, 3, 4, 9};
  constexpr int64_t kBatchSizes[] = {1, 3, 7};
  return CasesOf(kDatasetSizes, kWorldSizes, kBatchSizes);
}

std::vector<SamplingFault> AllFaults() {
  std::vector<SamplingFault> all = GuardFaults();
  for (const auto& some : {EpochFaults(), ResumeFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

absl::Status Check(const SubjectFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpochs(make, c));
  return CheckResuming(make, c);
}

TEST(FaultySamplerTest, WithoutAFaultPasses) {
  const SubjectFactory make = MakeFaulty({});
  for (const SamplingCase& c : Cases()) {
    ASSERT_THAT(Check(make, c), IsOk());
  }
}

TEST(FaultySamplerTest, EveryPropertyIsThereForAFault) {
  std::set<std::string> properties;
  for (const std::string& name : EpochProperties()) properties.insert(name);
  for (const std::string& name : ResumeProperties()) properties.insert(name);
  std::set<std::string> rejecting;
  std::set<std::string> names;
  for (const SamplingFault& fault : AllFaults()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " twice";
    rejecting.insert(fault.property);
  }
  EXPECT_EQ(rejecting, properties);
}

class SamplingFaultTest : public testing::TestWithParam<SamplingFault> {};

TEST_P(SamplingFaultTest, IsRejectedByWhatIsThereForIt) {
  const SamplingFault& fault = GetParam();
  const SubjectFactory make = MakeFaulty(fault);
  int shown = 0;
  for (const SamplingCase& c : Cases()) {
    if ((StepsOf(c) == 0 && fault.property != "Guards") || !fault.shows(c)) {
      continue;
    }
    ++shown;
    const absl::Status status = Check(make, c);
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

INSTANTIATE_TEST_SUITE_P(All, SamplingFaultTest, testing::ValuesIn(AllFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
