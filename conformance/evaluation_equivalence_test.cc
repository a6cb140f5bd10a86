// N ranks evaluate to what one rank evaluates to, to the last bit, through the
// trainer's own path.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation_check.h"
#include "conformance/evaluation_mutants.h"
#include "conformance/evaluation_run.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/trainer.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr int64_t kBatch = Trainer::kEvaluationBatch;

// Many; fewer batches than ranks; fewer samples than ranks; one sample.
constexpr int64_t kSizes[] = {kEvaluationSamples, kBatch + 3, 5, 1};

const OneRankEvaluation& OneRank(int64_t size) {
  static auto& cache = *new std::map<int64_t, OneRankEvaluation>;
  if (!cache.contains(size)) {
    cache.emplace(size, EvaluateOnOneRank(size).value());
  }
  return cache.at(size);
}

using Case = std::tuple<Backend, int>;

class EvaluationEquivalenceTest : public testing::TestWithParam<Case> {};

TEST_P(EvaluationEquivalenceTest, EqualsOneRankToTheBit) {
  const auto [backend, world_size] = GetParam();
  ClaimRecorder recorder({"evaluation", absl::AsciiStrToLower(Name(backend)),
                          world_size, "float32"});
  for (const int64_t size : kSizes) {
    const OneRankEvaluation& want = OneRank(size);
    ASSERT_EQ(want.whole.samples, size);
    ASSERT_GT(want.whole.loss, 1e-3);
    if (size == kEvaluationSamples) {  // Else a constant would pass.
      ASSERT_GT(want.whole.accuracy, 0.01);
      ASSERT_LT(want.whole.accuracy, 0.99);
    }
    const auto ranks =
        RunEvaluation(backend, world_size, size, EvaluateByTrainer);
    ASSERT_THAT(ranks, IsOk());
    ASSERT_THAT(*ranks, SizeIs(world_size));
    EXPECT_THAT(CheckEvaluation(want, *ranks), IsOk()) << size << " samples";
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationEquivalenceTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses),
                                          testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

// The controls, at every number of ranks above one.
class EvaluationControlTest : public testing::TestWithParam<int> {
 protected:
  void ExpectRejected(int64_t size, const Evaluator& evaluate,
                      const std::string& says) {
    const auto ranks =
        RunEvaluation(Backend::kThreads, GetParam(), size, evaluate);
    ASSERT_THAT(ranks, IsOk());
    EXPECT_THAT(CheckEvaluation(OneRank(size), *ranks),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(says)))
        << size << " samples";
  }
};

TEST_P(EvaluationControlTest, RejectsRanksThatReportTheirOwnShare) {
  ExpectRejected(kEvaluationSamples, ReportOwnShare,
                 "not reduced over the ranks?");
  ExpectRejected(1, ReportOwnShare, "not reduced over the ranks?");
}

TEST_P(EvaluationControlTest, RejectsAPaddedSampler) {
  const int world_size = GetParam();
  for (const int64_t size : kSizes) {
    const int64_t extra = (world_size - size % world_size) % world_size;
    if (extra == 0) continue;
    ExpectRejected(size, PadSampler,
                   absl::StrCat(extra, " count twice, those of a padded"));
  }
}

TEST_P(EvaluationControlTest, RejectsADroppedPartialBatch) {
  for (const int64_t size : kSizes) {
    ExpectRejected(size, DropPartialBatch,
                   absl::StrCat(size % kBatch, " are left out"));
  }
}

TEST_P(EvaluationControlTest, RejectsAMeanOfMeansOverUnevenRanks) {
  for (const int64_t size : kSizes) {
    const bool empty_ranks = size <= (GetParam() - 1) * kBatch;
    ExpectRejected(size, AverageRanksMeans,
                   empty_ranks ? "the mean of a rank without samples?"
                               : "it is the mean of the ranks' means");
  }
}

TEST_P(EvaluationControlTest, RejectsAMeanOfAccuraciesOverUnevenRanks) {
  ExpectRejected(kEvaluationSamples, AverageRanksAccuracies,
                 "Accuracy: accuracy is 0.");
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationControlTest,
                         testing::Values(2, 3, 4, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

TEST(EvaluationMutantsTest, EveryCheckHasAMutant) {
  std::set<std::string> rejecting;
  for (const EvaluationMutant& mutant : AllEvaluationMutants()) {
    rejecting.insert(mutant.check);
    EXPECT_THAT(PlantEvaluationMutant(mutant),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(StartsWith(mutant.check + ": "),
                               HasSubstr(mutant.says))))
        << mutant.bug;
  }
  const std::vector<std::string> checks = EvaluationChecks();
  EXPECT_EQ(rejecting, std::set<std::string>(checks.begin(), checks.end()));
}

// Whether the last bits of a float64 sum are right is chance: at about one
// world size in three they are not. Which ones depends on the last bits of the
// losses, so on the machine; hence several draws, until one shows it. On the
// machine that kEvaluationDraw was chosen on, it is the first.
TEST(EvaluationPlainSumTest, IsRejectedAtSomeWorldSizeAsRounding) {
  int rejected = 0;
  for (uint32_t draw = kEvaluationDraw;
       rejected == 0 && draw < kEvaluationDraw + 12; ++draw) {
    const auto want = EvaluateOnOneRank(kEvaluationSamples, draw);
    ASSERT_THAT(want, IsOk());
    for (const int world_size : {1, 2, 3, 4, 8}) {
      const auto ranks = RunEvaluation(Backend::kThreads, world_size,
                                       kEvaluationSamples, SumPlainly, draw);
      ASSERT_THAT(ranks, IsOk());
      const absl::Status verdict = CheckEvaluation(*want, *ranks);
      if (verdict.ok()) continue;
      ++rejected;
      EXPECT_THAT(verdict,
                  StatusIs(absl::StatusCode::kDataLoss,
                           HasSubstr("within rounding, so float64 sums")));
      // Where a plain sum shows, the trainer is right.
      const auto trainers =
          RunEvaluation(Backend::kThreads, world_size, kEvaluationSamples,
                        EvaluateByTrainer, draw);
      ASSERT_THAT(trainers, IsOk());
      EXPECT_THAT(CheckEvaluation(*want, *trainers), IsOk());
    }
  }
  RecordProperty("rejected_of_five", rejected);
  EXPECT_GT(rejected, 0);
}

}  // namespace
}  // namespace lockstep
