// The causes that CheckEvaluation names, and none that does not fit.
#include "conformance/evaluation_check.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
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

}  // namespace
}  // namespace lockstep
