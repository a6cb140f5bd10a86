// N ranks evaluate to what one rank evaluates to, to the last bit, through the
// trainer's own path; and what CheckEvaluation says where they do not: the
// cause, and none that does not fit.
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation.h"
#include "conformance/evaluation_mutants.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/trainer.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// Batches of 4, 4, 4 and 1: of two ranks, the first has 8 samples, the
// second 5.
OneRankEvaluation Want() {
  OneRankEvaluation want;
  want.batches = {{2, 0.5, 4}, {1, 0.75, 4}, {3, 0.25, 4}, {0.5, 1, 1}};
  want.whole = {24.5 / 13, 7.0 / 13, 13};
  return want;
}

Evaluation With(double Evaluation::*field, double value) {
  Evaluation report = Want().whole;
  report.*field = value;
  return report;
}

Evaluation Counting(int64_t samples) {
  Evaluation report = Want().whole;
  report.samples = samples;
  return report;
}

std::string Said(const std::vector<Evaluation>& ranks) {
  return std::string(CheckEvaluation(Want(), ranks).message());
}

std::string SaidByAll(const Evaluation& report) {
  return Said({report, report});
}

TEST(EvaluationCheckTest, TakesWhatOneRankHas) {
  EXPECT_EQ(SaidByAll(Want().whole), "");
}

TEST(EvaluationCheckTest, NamesRanksThatReportTheirShare) {
  const Evaluation first = {1.5, 0.625, 8}, second = {2.5, 0.4, 5};
  EXPECT_THAT(Said({first, second}),
              AllOf(StartsWith("RanksAgree: "), HasSubstr("not reduced")));
  // Ranks that differ otherwise.
  EXPECT_THAT(Said({first, Want().whole}),
              AllOf(StartsWith("RanksAgree: "), Not(HasSubstr("?"))));
  EXPECT_THAT(Said({Want().whole, With(&Evaluation::loss, 1)}),
              AllOf(StartsWith("RanksAgree: "), Not(HasSubstr("?"))));
}

TEST(EvaluationCheckTest, NamesWhoseSamplesCountTwiceOrNot) {
  EXPECT_THAT(SaidByAll(Counting(14)), HasSubstr("1 count twice, those of a "
                                                 "padded sampler?"));
  EXPECT_THAT(SaidByAll(Counting(15)),
              AllOf(HasSubstr("2 count twice"), Not(HasSubstr("?"))));
  EXPECT_THAT(SaidByAll(Counting(12)),
              HasSubstr("1 are left out, those of the partial batch?"));
  EXPECT_THAT(SaidByAll(Counting(8)),  // A rank's.
              AllOf(HasSubstr("5 are left out"), Not(HasSubstr("?"))));
}

TEST(EvaluationCheckTest, NamesAMeanOfMeans) {
  EXPECT_THAT(SaidByAll(With(&Evaluation::loss, 2)),
              AllOf(StartsWith("Loss: "), HasSubstr("mean of the ranks'")));
  EXPECT_THAT(SaidByAll(With(&Evaluation::accuracy, 0.5125)),
              AllOf(StartsWith("Accuracy: "), HasSubstr("mean of the ranks'")));
  EXPECT_THAT(SaidByAll(With(&Evaluation::loss, Want().whole.loss + 1e-15)),
              HasSubstr("within rounding"));
}

TEST(EvaluationCheckTest, NamesNothingElse) {
  const double loss = Want().whole.loss;
  for (const double wrong : {2 * loss, loss / 2, 1.001 * loss, -loss, 1e300}) {
    EXPECT_THAT(SaidByAll(With(&Evaluation::loss, wrong)),
                AllOf(StartsWith("Loss: "), Not(HasSubstr("means")),
                      Not(HasSubstr("?"))));
  }
  // No rank is without samples here.
  EXPECT_THAT(SaidByAll(With(&Evaluation::accuracy,
                             std::numeric_limits<double>::quiet_NaN())),
              AllOf(StartsWith("Accuracy: "), Not(HasSubstr("?"))));
}

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
