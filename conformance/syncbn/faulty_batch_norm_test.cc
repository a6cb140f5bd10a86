// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the check that is there for it, with a message that
// says so; and the same layers without a fault pass.
#include "conformance/syncbn/faulty_batch_norm.h"

#include <ostream>
#include <set>
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
using testing::Not;
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

TEST(FaultyBatchNormTest, EveryCheckIsThereForAFault) {
  std::set<std::string> checks;
  for (const std::string& name : BatchNormChecks()) checks.insert(name);
  std::set<std::string> rejecting;
  std::set<std::string> names;
  for (const BatchNormFault& fault : AllBatchNormFaults()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " twice";
    EXPECT_FALSE(fault.says.empty()) << fault.name;
    rejecting.insert(fault.check);
  }
  EXPECT_EQ(rejecting, checks);
}

// What the suite says of the fault in the smallest case in which it must show.
std::string Diagnosis(const BatchNormFault& fault) {
  for (const BatchNormProblem& problem : FaultProblems(fault)) {
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      return CheckFaulty(fault, MakeExam(problem), {variant})[0].ToString();
    }
  }
  return "";
}

// Else a check that takes one mistake for another would pass. The same mistake
// in another output is in the same words.
TEST(FaultyBatchNormTest, NoFaultIsNamedForAnother) {
  const std::vector<BatchNormFault> all = AllBatchNormFaults();
  for (const BatchNormFault& planted : all) {
    const std::string diagnosis = Diagnosis(planted);
    for (const BatchNormFault& other : all) {
      if (other.name == planted.name) continue;
      if (other.says == planted.says && other.check != planted.check) continue;
      EXPECT_THAT(diagnosis, Not(HasSubstr(other.says)))
          << planted.name << " is taken for " << other.name;
    }
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
