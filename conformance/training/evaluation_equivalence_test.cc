// Tests that N ranks evaluate to one rank's result, to the last bit, through
// the trainer's own path. Also tests the causes that CheckEvaluation gives if
// they do not.
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
#include "conformance/report/claim_recorder.h"
#include "conformance/training/evaluation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// Batches of 4, 4, 4 and 1 samples. Of two ranks, the first has 8 samples and
// the second 5.
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

// The mutants test the causes that are named; these cases have none.
TEST(EvaluationCheckTest, NamesNothingElse) {
  const Evaluation whole = Want().whole;
  // Ranks that differ in another way than by their shares.
  for (const std::vector<Evaluation>& ranks :
       {std::vector<Evaluation>{{1.5, 0.625, 8}, whole},
        {whole, With(&Evaluation::loss, 1)}}) {
    EXPECT_THAT(Said(ranks),
                AllOf(StartsWith("RanksAgree: "), Not(HasSubstr("?"))));
  }
  EXPECT_THAT(SaidByAll(Counting(15)),
              AllOf(HasSubstr("2 count twice"), Not(HasSubstr("?"))));
  EXPECT_THAT(SaidByAll(Counting(8)),  // One rank's count.
              AllOf(HasSubstr("5 are left out"), Not(HasSubstr("?"))));
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

// Many samples; fewer batches than ranks; fewer samples than ranks; one.
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
    if (size == kEvaluationSamples) {  // Otherwise a constant would pass.
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

// The controls, at every world size above one.
class EvaluationControlTest : public testing::TestWithParam<int> {
 protected:
  void ExpectRejected(int64_t size, Evaluator& evaluate,
                      const std::string& says) {
    const auto ranks =
        RunEvaluation(Backend::kThreads, GetParam(), size, evaluate);
    ASSERT_THAT(ranks, IsOk());
    EXPECT_THAT(CheckEvaluation(OneRank(size), *ranks),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(says)))
        << size << " samples";
  }
};

TEST_P(EvaluationControlTest, RejectsEveryOtherEvaluation) {
  const int world_size = GetParam();
  for (const int64_t size : kSizes) {
    if (size == kEvaluationSamples || size == 1) {
      ExpectRejected(size, ReportOwnShare, "not reduced over the ranks?");
    }
    const int64_t extra = (world_size - size % world_size) % world_size;
    if (extra > 0) {
      ExpectRejected(size, PadSampler,
                     absl::StrCat(extra, " count twice, those of a padded"));
    }
    ExpectRejected(size, DropPartialBatch,
                   absl::StrCat(size % kBatch, " are left out"));
    const bool empty_ranks = size <= (world_size - 1) * kBatch;
    ExpectRejected(size, AverageRanksMeans,
                   empty_ranks ? "the mean of a rank without samples?"
                               : "it is the mean of the ranks' means");
  }
  ExpectRejected(kEvaluationSamples, AverageRanksAccuracies,
                 "Accuracy: accuracy is 0.");
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationControlTest,
                         testing::Values(2, 3, 4, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

}  // namespace
}  // namespace lockstep::conformance
