// Causes of y are named where they give every element, and nowhere else.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/data_type.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/batch_norm_subject.h"
#include "conformance/syncbn/batch_norm_values.h"
#include "conformance/syncbn/step_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// Rank 0's y of a step of a problem, in channels first.
class Outputs {
 public:
  explicit Outputs(const BatchNormProblem& problem, int step = 0)
      : exam(MakeExam(problem)),
        runs_(static_cast<size_t>(problem.world_size), RankRun(kSteps)),
        view_{exam, variant_, runs_, step} {
    y = view_.WantOn(0).y[0].value;
  }

  // By another mean and variance of each channel.
  using Other = std::function<double(size_t c)>;
  void Normalize(const Other& mean, const Other& variance) {
    ForEach([&](size_t i, size_t c) {
      y[i] = (x()[i] - mean(c)) / std::sqrt(variance(c) + exam.layer.epsilon) *
                 exam.layer.weight[c] +
             exam.layer.bias[c];
    });
  }
  double Mean(size_t c) const { return statistics().mean.value[c]; }
  double Variance(size_t c) const {
    return statistics().m2.value[c] / static_cast<double>(statistics().count);
  }

  // Calls fn(element, its channel).
  template <typename Fn>
  void ForEach(Fn fn) {
    const auto hw = static_cast<size_t>(exam.problem.hw);
    const auto channels = static_cast<size_t>(exam.problem.channels);
    for (size_t i = 0; i < y.size(); ++i) fn(i, i / hw % channels);
  }

  std::vector<double>& x() { return step().ranks[0].x; }
  ExamStep& step() { return exam.steps[static_cast<size_t>(view_.step)]; }
  const ReferenceStatistics& statistics() const {
    return view_.exam_step().statistics;
  }

  // The cause, of a channel; elements that are `unwritten` hold what outputs
  // do before.
  std::string Cause(int64_t channel = 0,
                    const std::vector<size_t>& unwritten = {}) {
    const DataType type = exam.problem.type;
    RankStep& run = runs_[0][static_cast<size_t>(view_.step)];
    run.y =
        Encode(type, ToLayout(exam.ShapeOf(view_.step, 0, Layout::kNchw), y));
    const auto size = static_cast<size_t>(SizeOf(type));
    for (const size_t i : unwritten) {
      run.y.replace(i * size, size, size, kUnwritten);
    }
    return CauseOfOutput(view_, 0, channel, view_.Activations(0, run.y));
  }

  BatchNormExam exam;
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
            .batches = Batches::kUneven,
            .channels = 3,
            .hw = 5};
  }
};

TEST_P(OutputCausesTest, NamesTheMistakeAndNotItsSibling) {
  Outputs outputs(Problem());
  const ReferenceStatistics own =
      StatisticsOf(outputs.exam.layer, {outputs.step().ranks.data(), 1}, {});
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
