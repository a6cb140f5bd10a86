// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the check that is there for it, with a message that
// says so; and the same layers without a fault pass. That each check has a
// fault, and no fault is named for another, is asked of all folders at once
// (conformance/mutants/all_mutants_test.cc).
#include "conformance/syncbn/faulty_batch_norm.h"

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/plant_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const BatchNormFault& fault, std::ostream* out) {
  *out << fault.bug;
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(FaultyBatchNormTest, WithoutAFaultPasses) {
  BatchNormFault none;
  none.check = "SameBits";  // Ask it too.
  for (const BatchNormProblem& problem : FaultProblems(none)) {
    const BatchNormExam exam = MakeExam(problem);
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    ASSERT_THAT(CheckFaulty(none, exam, AllVariants()), testing::Each(IsOk()));
  }
}

class BatchNormFaultTest : public testing::TestWithParam<BatchNormFault> {};

TEST_P(BatchNormFaultTest, IsRejectedByWhatIsThereForIt) {
  const BatchNormFault& fault = GetParam();
  int shown = 0;
  for (const BatchNormProblem& problem : FaultProblems(fault)) {
    std::vector<std::vector<BatchNormVariant>> groups(1);
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      if (fault.breaks_group && !groups.back().empty()) groups.emplace_back();
      groups.back().push_back(variant);
    }
    if (groups.back().empty()) continue;
    const BatchNormExam exam = MakeExam(problem);
    for (const std::vector<BatchNormVariant>& variants : groups) {
      for (const absl::Status& status : CheckFaulty(fault, exam, variants)) {
        if (++shown == 1) RecordProperty("says", status.ToString());
        ASSERT_THAT(status,
                    StatusIs(absl::StatusCode::kDataLoss,
                             AllOf(StartsWith(absl::StrCat(fault.check, ": ")),
                                   HasSubstr(fault.says))))
            << ToString(problem) << ": " << fault.bug;
      }
    }
  }
  RecordProperty("cases", shown);
  EXPECT_GT(shown, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BatchNormFaultTest,
                         testing::ValuesIn(AllBatchNormFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
