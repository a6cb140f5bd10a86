// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the check that is there for it, with a message that
// says so; and the same layers without a fault pass.
#include "conformance/syncbn/faulty_batch_norm.h"

#include <cstddef>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_subject.h"
#include "conformance/syncbn/run_batch_norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const BatchNormFault& fault, std::ostream* out) {
  *out << fault.bug;
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A group that a fault breaks has ended by then, and has not waited for it.
constexpr absl::Duration kGroupTimeout = absl::Seconds(10);
constexpr absl::Duration kDeadline = absl::Minutes(2);

// A part of the grid: float32 and bfloat16, 1 and 3 ranks, 3 and 65 channels;
// fused with everything at 3 ranks, 64 channels too.
std::vector<BatchNormProblem> Problems() {
  std::vector<BatchNormProblem> some;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const Batches batches : kAllBatches) {
      for (const int world_size : {1, 3}) {
        for (const auto& problem : ProblemsOf(world_size, type, batches)) {
          if (problem.channels == 3 || problem.channels == 65) {
            some.push_back(problem);
          }
        }
      }
      for (const auto& problem : FusedProblemsOf(3, type, batches)) {
        some.push_back(problem);
      }
    }
  }
  return some;
}

std::vector<BatchNormFault> AllFaults() {
  std::vector<BatchNormFault> all;
  for (const auto& some : {SumFaults(), StatisticsFaults(), RunningFaults(),
                           GradientFaults(), CallFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

LayerFactory Make(const BatchNormFault& fault) {
  return MakeFaulty(fault, [] {
    return std::unique_ptr<BatchNormKernels>(
        std::make_unique<CpuBatchNormKernels>());
  });
}

RunRanksOptions GroupOf() {
  RunRanksOptions options;
  options.group.timeout = kGroupTimeout;
  options.deadline = kDeadline;
  return options;
}

// What the checks say of each variant, run in one group; `twice`, and SameBits.
std::vector<absl::Status> Check(const BatchNormExam& exam,
                                const std::vector<BatchNormVariant>& variants,
                                const LayerFactory& make, bool twice) {
  std::vector<BatchNormVariant> all = variants;
  if (twice) all.insert(all.end(), variants.begin(), variants.end());
  const auto runs = RunVariants(Backend::kThreads, exam, all, make, GroupOf());
  if (!runs.ok()) return {variants.size(), runs.status()};
  std::vector<absl::Status> statuses;
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto& run = (*runs)[v];
    absl::Status status = CheckRun(exam, variants[v], run);
    if (status.ok() && twice) {
      status = CheckSameBits(exam, variants[v], run,
                             (*runs)[variants.size() + v], "in another run");
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

TEST(FaultyBatchNormTest, WithoutAFaultPasses) {
  for (const BatchNormProblem& problem : Problems()) {
    const BatchNormExam exam = MakeExam(problem);
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    ASSERT_THAT(Check(exam, AllVariants(), Make({}), true),
                testing::Each(IsOk()));
  }
}

TEST(FaultyBatchNormTest, EveryCheckIsThereForAFault) {
  std::set<std::string> checks;
  for (const std::string& name : BatchNormChecks()) checks.insert(name);
  std::set<std::string> rejecting;
  std::set<std::string> names;
  for (const BatchNormFault& fault : AllFaults()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " twice";
    EXPECT_FALSE(fault.says.empty()) << fault.name;
    rejecting.insert(fault.check);
  }
  EXPECT_EQ(rejecting, checks);
}

class BatchNormFaultTest : public testing::TestWithParam<BatchNormFault> {};

TEST_P(BatchNormFaultTest, IsRejectedByWhatIsThereForIt) {
  const BatchNormFault& fault = GetParam();
  int shown = 0;
  for (const BatchNormProblem& problem :
       fault.problems != nullptr ? fault.problems() : Problems()) {
    std::vector<std::vector<BatchNormVariant>> groups(1);
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      if (fault.breaks_group && !groups.back().empty()) groups.emplace_back();
      groups.back().push_back(variant);
    }
    if (groups.back().empty()) continue;
    const BatchNormExam exam = MakeExam(problem);
    for (const std::vector<BatchNormVariant>& variants : groups) {
      for (const absl::Status& status :
           Check(exam, variants, Make(fault), fault.check == "SameBits")) {
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
                         testing::ValuesIn(AllFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
