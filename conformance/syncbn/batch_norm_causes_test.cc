// A cause fits numbers that are wrong, all of them, and no others.
#include "conformance/syncbn/batch_norm_causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "conformance/mutant.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// Of any other name, BatchNormCheck does not compile.
static_assert(IsNameIn(kBatchNormChecks, "Status"));
static_assert(IsNameIn(kBatchNormChecks, "SameBits"));
static_assert(!IsNameIn(kBatchNormChecks, "Outputs"));
static_assert(!IsNameIn(kBatchNormChecks, "Out"));
static_assert(!IsNameIn(kBatchNormChecks, ""));

constexpr double kBound = 0.01;

// 1, 2, 3, ..., each within kBound.
Bounded Wanted(int64_t size) {
  Bounded want(size);
  for (size_t i = 0; i < want.value.size(); ++i) {
    want.value[i] = static_cast<double>(i) + 1;
    want.bound[i] = kBound;
  }
  return want;
}

class BestFitTest : public testing::Test {
 protected:
  Alternative Times(const std::string& name, double factor) const {
    return {name, [this, factor](size_t i, size_t) {
              return factor * want_.value[i];
            }};
  }
  std::string Fit(const std::vector<double>& got,
                  const std::vector<Alternative>& alternatives) const {
    return BestFit(got, want_, Precision(), 1, 1, alternatives);
  }
  std::vector<double> Scaled(double factor) const {
    std::vector<double> got = want_.value;
    for (double& value : got) value *= factor;
    return got;
  }

  const Bounded want_ = Wanted(6);
};

TEST_F(BestFitTest, NamesTheClosestMistake) {
  const std::vector<Alternative> alternatives = {
      Times("halved", 0.5), Times("a bit more", 0.503), Times("doubled", 2)};
  EXPECT_EQ(Fit(Scaled(0.5), alternatives), ", as if halved");
  EXPECT_EQ(Fit(Scaled(0.503), alternatives), ", as if a bit more");
  EXPECT_EQ(Fit(Scaled(2), alternatives), ", as if doubled");
  EXPECT_EQ(Fit(Scaled(3), alternatives), "");
}

// What is two bounds off for any reason.
TEST_F(BestFitTest, DoesNotNameWhatWouldNotBeRejected) {
  std::vector<double> got = want_.value;
  got[2] += 2 * kBound;
  EXPECT_EQ(Fit(got, {Times("right, nearly", 1 + 1e-5)}), "");
  EXPECT_EQ(Fit(got, {Times("within the bounds", 1 + 0.1 * kBound)}), "");
}

TEST_F(BestFitTest, DoesNotNameWhatIsNoCloser) {
  std::vector<double> got = want_.value;
  got[2] += 2 * kBound;
  const Alternative elsewhere = {"another is off", [&](size_t i, size_t) {
                                   return want_.value[i] +
                                          (i == 4 ? 1.5 : 0) * kBound;
                                 }};
  EXPECT_EQ(Fit(got, {elsewhere}), "");
  const Alternative there = {"it is off", [&](size_t i, size_t) {
                               return want_.value[i] +
                                      (i == 2 ? 1.5 : 0) * kBound;
                             }};
  EXPECT_EQ(Fit(got, {elsewhere, there}), ", as if it is off");
}

TEST_F(BestFitTest, AsksForEveryElement) {
  for (size_t i = 0; i < 6; ++i) {
    std::vector<double> got = Scaled(0.5);
    got[i] = 7;
    EXPECT_EQ(Fit(got, {Times("halved", 0.5)}), "") << i;
    got[i] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(Fit(got, {Times("halved", 0.5), Times("NaN", NAN)}), "") << i;
  }
}

TEST_F(BestFitTest, StretchesBounds) {
  std::vector<double> got = Scaled(2);
  got[0] += 6 * kBound;
  Alternative doubled = Times("doubled", 2);
  EXPECT_EQ(Fit(got, {doubled}), "");
  doubled.stretch = [](size_t) { return 2.0; };
  EXPECT_EQ(Fit(got, {doubled}), ", as if doubled");
}

// Of 66 channels with 3 values.
class FirstChannelsTest : public testing::Test {
 protected:
  std::string Of(const std::vector<double>& got) const {
    return FirstChannelsOnly(got, want_, 3, 66, 65);
  }
  const Bounded want_ = Wanted(66 * 3);
};

TEST_F(FirstChannelsTest, NamesWhatIsNotComputed) {
  std::vector<double> got = want_.value;
  for (size_t i = 64 * 3; i < got.size(); ++i) got[i] = 0;
  EXPECT_EQ(Of(got), ", as if only the first 64 channels were computed");
  EXPECT_EQ(FirstChannelsOnly(got, want_, 3, 66, 63), "");
  got[5] = NAN;
  EXPECT_EQ(Of(got), "");
}

TEST_F(FirstChannelsTest, DoesNotNameItForAFewElements) {
  std::vector<double> got = want_.value;
  got.back() = 0;
  EXPECT_EQ(Of(got), "");
  for (size_t i = 65 * 3; i < got.size(); ++i) got[i] = 0;
  EXPECT_EQ(Of(got), "");  // Channel 64 is right.
}

TEST(NotWrittenTest, AsksForTheBytesOfEveryWrongElement) {
  const Bounded want = Wanted(4);
  std::vector<double> got = want.value;
  got[1] = got[3] = NAN;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}),
            ", as if it had not been written, 2 of 4");
  // A NaN that was computed.
  EXPECT_EQ(NotWritten(got, want, {false, true, false, false}), "");
  got[0] = 7;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}), "");
}

// Rank 0's y of a step of a problem, in channels first.
class Outputs {
 public:
  explicit Outputs(const BatchNormProblem& problem, int step = 0)
      : solved(SolveProblem(problem)),
        runs_(static_cast<size_t>(problem.world_size), RankRun(kSteps)),
        view_{solved, variant_, runs_, step} {
    y = view_.WantOn(0).y[0].value;
  }

  // By another mean and variance of each channel.
  using Other = std::function<double(size_t c)>;
  void Normalize(const Other& mean, const Other& variance) {
    ForEach([&](size_t i, size_t c) {
      y[i] = (x()[i] - mean(c)) /
                 std::sqrt(variance(c) + solved.layer.epsilon) *
                 solved.layer.weight[c] +
             solved.layer.bias[c];
    });
  }
  double Mean(size_t c) const { return statistics().mean.value[c]; }
  double Variance(size_t c) const {
    return statistics().m2.value[c] / static_cast<double>(statistics().count);
  }

  // Calls fn(element, its channel).
  template <typename Fn>
  void ForEach(Fn fn) {
    const auto hw = static_cast<size_t>(solved.problem.hw);
    const auto channels = static_cast<size_t>(solved.problem.channels);
    for (size_t i = 0; i < y.size(); ++i) fn(i, i / hw % channels);
  }

  std::vector<double>& x() { return step().ranks[0].x; }
  SolvedStep& step() { return solved.steps[static_cast<size_t>(view_.step)]; }
  const ReferenceStatistics& statistics() const {
    return view_.solved_step().statistics;
  }

  // The cause, of a channel; elements that are `unwritten` hold what outputs
  // do before.
  std::string Cause(int64_t channel = 0,
                    const std::vector<size_t>& unwritten = {}) {
    const DataType type = solved.problem.type;
    RankOutputs& run = runs_[0][static_cast<size_t>(view_.step)];
    run.y =
        Encode(type, ToLayout(solved.ShapeOf(view_.step, 0, Layout::kNchw), y));
    const auto size = static_cast<size_t>(SizeOf(type));
    for (const size_t i : unwritten) {
      run.y.replace(i * size, size, size, kUnwritten);
    }
    return CauseOfOutput(view_, 0, channel, view_.Activations(0, run.y));
  }

  SolvedProblem solved;
  std::vector<double> y;

 private:
  const BatchNormVariant variant_;
  std::vector<RankRun> runs_;
  StepView view_;
};

class OutputCausesTest : public testing::TestWithParam<int> {
 protected:
  BatchNormProblem Problem() const {
    return {.world_size = GetParam(),
            .batches = RankBatches::kUneven,
            .channels = 3,
            .hw = 5};
  }
};

TEST_P(OutputCausesTest, NamesTheMistakeAndNotItsSibling) {
  Outputs outputs(Problem());
  const ReferenceStatistics own =
      StatisticsOf(outputs.solved.layer, {outputs.step().ranks.data(), 1}, {});
  const auto right_mean = [&](size_t c) { return outputs.Mean(c); };
  const auto right = [&](size_t c) { return outputs.Variance(c); };
  const auto n = static_cast<double>(outputs.statistics().count);
  outputs.Normalize(right_mean,
                    [&](size_t c) { return right(c) * n / (n - 1); });
  EXPECT_EQ(outputs.Cause(), ", as if the variance were divided by n - 1");
  outputs.Normalize([&](size_t c) { return own.mean.value[c]; },
                    [&](size_t c) {
                      return own.m2.value[c] / static_cast<double>(own.count);
                    });
  EXPECT_EQ(outputs.Cause(), ", as if this rank's own batch were the whole");
  // The running statistics, to both of which another name is near.
  outputs.Normalize(
      [&](size_t c) { return outputs.step().running_mean[c]; },
      [&](size_t c) { return outputs.step().running_variance[c]; });
  EXPECT_EQ(outputs.Cause(), ", as if the running statistics were used");
}

TEST_P(OutputCausesTest, NamesNoneForOneWrongElement) {
  for (const double wrong : {7.0, 0.0, static_cast<double>(NAN)}) {
    for (const size_t i : {0, 4, 7, 29}) {
      Outputs outputs(Problem());
      outputs.y[i] = wrong;
      EXPECT_THAT(outputs.Cause(static_cast<int64_t>(i / 5 % 3)), IsEmpty())
          << wrong << " at " << i;
    }
  }
}

TEST_P(OutputCausesTest, NamesNoneForOneWrongElementBesideAMistake) {
  Outputs outputs(Problem());
  outputs.Normalize([&](size_t c) { return outputs.Mean(c); },
                    [&](size_t c) { return outputs.Variance(c) * 1.5; });
  outputs.y[2] += 0.5;
  EXPECT_THAT(outputs.Cause(), IsEmpty());
}

TEST_P(OutputCausesTest, TellsMemoryFromNumbers) {
  Outputs outputs(Problem());
  EXPECT_EQ(outputs.Cause(0, {3, 11}),
            ", as if it had not been written, 2 of " +
                std::to_string(outputs.y.size()));
  // The root of a negative variance.
  outputs.ForEach([&](size_t i, size_t c) {
    if (c == 1) outputs.y[i] = std::sqrt(-outputs.Variance(c));
  });
  EXPECT_THAT(outputs.Cause(1), Not(HasSubstr("written")));
  EXPECT_THAT(outputs.Cause(1, {3}), Not(HasSubstr("written")));
}

TEST_P(OutputCausesTest, FitsALineThroughEveryElement) {
  Outputs outputs(Problem());
  outputs.Normalize([&](size_t c) { return outputs.Mean(c) + 0.25; },
                    [&](size_t c) { return outputs.Variance(c) * 1.5; });
  EXPECT_THAT(outputs.Cause(), StartsWith(", as if the mean were "));
  outputs.x().assign(outputs.x().size(), 3);
  EXPECT_THAT(outputs.Cause(), IsEmpty());
}

TEST_P(OutputCausesTest, NamesEvaluationByTheBatch) {
  Outputs outputs(Problem(), /*step=*/2);
  const ReferenceStatistics own = outputs.step().own_statistics[0];
  outputs.Normalize([&](size_t c) { return own.mean.value[c]; },
                    [&](size_t c) {
                      return own.m2.value[c] / static_cast<double>(own.count);
                    });
  EXPECT_EQ(outputs.Cause(),
            ", as if this rank's own batch were used in evaluation");
}

INSTANTIATE_TEST_SUITE_P(Ranks, OutputCausesTest, testing::Values(3, 4),
                         [](const auto& info) {
                           return "P" + std::to_string(info.param);
                         });

class CancellationTest : public testing::TestWithParam<DataType> {
 protected:
  static BatchNormProblem Problem() {
    return {
        .type = GetParam(), .offsets = Offsets::kFar, .channels = 65, .hw = 15};
  }
};

// E[x^2] - E[x]^2, one value after the other.
double SquaredVariance(Outputs& outputs, size_t c) {
  float sum = 0;
  float squares = 0;
  float count = 0;
  outputs.ForEach([&](size_t i, size_t channel) {
    if (channel != c) return;
    const auto x = static_cast<float>(outputs.x()[i]);
    sum += x;
    squares += x * x;
    ++count;
  });
  const float mean = sum / count;
  return std::max(0.0F, squares / count - mean * mean);
}

TEST_P(CancellationTest, IsNamedInFloat) {
  Outputs outputs(Problem());
  outputs.Normalize([&](size_t c) { return outputs.Mean(c); },
                    [&](size_t c) { return SquaredVariance(outputs, c); });
  EXPECT_EQ(outputs.Cause(),
            ", as if the variance were E[x^2] - E[x]^2, in float32");
}

TEST_P(CancellationTest, IsNotNamedForAnotherVariance) {
  for (const double times : {0.5, 0.8, 2.0}) {
    Outputs outputs(Problem());
    outputs.Normalize([&](size_t c) { return outputs.Mean(c); },
                      [&](size_t c) { return times * outputs.Variance(c); });
    EXPECT_THAT(outputs.Cause(), Not(HasSubstr("E[x^2]"))) << times;
    EXPECT_THAT(outputs.Cause(), StartsWith(", as if the mean were ")) << times;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CancellationTest,
                         testing::Values(DataType::kFloat32,
                                         DataType::kFloat16),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

// Halved, where the type of x itself has few digits.
TEST(CancellationInOwnTypeTest, IsNotNamedForAHalvedVariance) {
  Outputs outputs({.type = DataType::kBFloat16,
                   .offsets = Offsets::kFar,
                   .channels = 65,
                   .hw = 15});
  outputs.Normalize([&](size_t c) { return outputs.Mean(c); },
                    [&](size_t c) { return outputs.Variance(c) / 2; });
  EXPECT_THAT(outputs.Cause(), Not(HasSubstr("E[x^2]")));
}

}  // namespace
}  // namespace lockstep
