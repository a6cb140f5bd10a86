// Local batch norm through oneDNN: batch norm of one rank, in every layer that
// has it; and of two ranks it is not, and the suite says so.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/run_batch_norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_options.h"
#include "syncbn/cpu/onednn_batch_norm.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

absl::StatusOr<std::unique_ptr<BatchNorm>> MakeLocal(
    const BatchNormOptions& options, Communicator&) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                            OnednnBatchNorm::Create(options));
  return layer;
}

class LocalBatchNormTest : public testing::TestWithParam<Batches> {};

TEST_P(LocalBatchNormTest, IsBatchNormOfOneRank) {
  std::vector<BatchNormProblem> problems =
      ProblemsOf(1, DataType::kFloat32, GetParam());
  for (const auto& fused : FusedProblemsOf(1, DataType::kFloat32, GetParam())) {
    problems.push_back(fused);
  }
  const std::vector<BatchNormVariant> variants = AllVariants();
  double largest = 0;
  for (const BatchNormProblem& problem : problems) {
    const BatchNormExam exam = MakeExam(problem);
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    const auto runs = RunVariants(Backend::kThreads, exam, variants, MakeLocal);
    ASSERT_THAT(runs, IsOk());
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto error = MeasureRun(exam, variants[v], (*runs)[v]);
      ASSERT_THAT(error, IsOk());
      largest = std::max(largest, *error);
    }
  }
  // Float32 rounds, but where the only rank is empty and there is nothing to
  // round: any other measure of 0 is one that was not taken.
  EXPECT_EQ(largest == 0, GetParam() == Batches::kEmptyRank) << largest;
  EXPECT_LE(largest, 1);
}

INSTANTIATE_TEST_SUITE_P(All, LocalBatchNormTest,
                         testing::ValuesIn(kAllBatches),
                         [](const auto& info) { return Name(info.param); });

TEST(LocalBatchNormControlTest, IsNotBatchNormOfTwoRanks) {
  for (const auto& problem :
       ProblemsOf(2, DataType::kFloat32, Batches::kUneven)) {
    // Of one value per channel on a rank, it is refused.
    if (problem.hw == 1) continue;
    const BatchNormExam exam = MakeExam(problem);
    const std::vector<BatchNormVariant> variants = LayoutVariants();
    const auto runs = RunVariants(Backend::kThreads, exam, variants, MakeLocal);
    ASSERT_THAT(runs, IsOk());
    for (size_t v = 0; v < variants.size(); ++v) {
      EXPECT_THAT(
          CheckRun(exam, variants[v], (*runs)[v]),
          StatusIs(absl::StatusCode::kDataLoss,
                   AllOf(StartsWith("Output: "),
                         HasSubstr("as if this rank's own batch were"))));
    }
  }
}

}  // namespace
}  // namespace lockstep
