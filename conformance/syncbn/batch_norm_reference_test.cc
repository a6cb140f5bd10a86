// Tests the reference. Its gradients are the slopes of its own loss, and its
// results are PyTorch's. Its bounds follow the precision and reject wrong
// numbers.
#include "syncbn/testing/batch_norm_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/causes.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/output_causes.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr Precision kExact = {.unit = 0x1p-53};

// Returns the sum of y dy over all ranks: the loss whose gradients backward
// computes.
double Loss(const ReferenceLayer& layer, const ReferenceStatistics* constants,
            const std::vector<ReferenceBatch>& ranks) {
  const ReferenceStatistics statistics =
      constants != nullptr ? *constants : StatisticsOf(layer, ranks, kExact);
  double loss = 0;
  for (const ReferenceBatch& batch : ranks) {
    const Bounded y = ReferenceBeforeRelu(layer, statistics, batch, kExact);
    for (size_t i = 0; i < y.value.size(); ++i) {
      const double value = layer.relu ? std::max(y.value[i], 0.0) : y.value[i];
      loss += value * batch.dy[i];
    }
  }
  return loss;
}

// The slope of the loss over `number`, by central differences. Its error is
// about kStep^2 times the third derivative plus 2^-52 |loss| / kStep.
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-7;

template <typename Fn>
double Slope(double& number, Fn loss) {
  const double at = number;
  number = at + kStep;
  const double above = loss();
  number = at - kStep;
  const double below = loss();
  number = at;
  return (above - below) / (2 * kStep);
}

struct Layers {
  const char* name;
  bool affine;
  Fused fused;
  int step;  // 0: training, 2: evaluation with running statistics.
};

class ReferenceGradientTest : public testing::TestWithParam<Layers> {};

TEST_P(ReferenceGradientTest, IsTheSlopeOfTheLoss) {
  BatchNormProblem problem;
  problem.world_size = 3;
  problem.type = DataType::kFloat64;
  problem.batches = RankBatches::kEmptyRank;
  problem.channels = 3;
  problem.hw = 4;
  problem.affine = GetParam().affine;
  problem.fused = GetParam().fused;
  const SolvedProblem solved = SolveProblem(problem);
  const SolvedStep& step = solved.steps[static_cast<size_t>(GetParam().step)];
  ReferenceLayer layer = solved.layer;
  std::vector<ReferenceBatch> ranks = step.ranks;
  const ReferenceStatistics* constants =
      step.training ? nullptr : &step.statistics;
  const auto loss = [&] { return Loss(layer, constants, ranks); };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < ranks[rank].x.size(); ++i) {
      // No element is so near to zero that a step changes its sign.
      if (layer.relu) {
        const double y =
            ReferenceBeforeRelu(layer, step.statistics, ranks[rank], kExact)
                .value[i];
        ASSERT_GT(std::fabs(y), 10 * kStep);
      }
      EXPECT_NEAR(step.want.dx[rank].value[i], Slope(ranks[rank].x[i], loss),
                  kTolerance);
      if (ranks[rank].residual.empty()) continue;
      EXPECT_NEAR(step.want.dresidual[rank][i],
                  Slope(ranks[rank].residual[i], loss), kTolerance);
    }
  }
  for (size_t c = 0; c < layer.weight.size(); ++c) {
    EXPECT_NEAR(step.want.dweight.value[c], Slope(layer.weight[c], loss),
                kTolerance);
    EXPECT_NEAR(step.want.dbias.value[c], Slope(layer.bias[c], loss),
                kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ReferenceGradientTest,
    testing::Values(Layers{"Plain", false, Fused::kNothing, 0},
                    Layers{"Affine", true, Fused::kNothing, 0},
                    Layers{"AffineRelu", true, Fused::kRelu, 0},
                    Layers{"AffineResidualRelu", true, Fused::kResidualRelu, 0},
                    Layers{"Evaluation", true, Fused::kResidual, 2},
                    Layers{"EvaluationRelu", false, Fused::kRelu, 2}),
    [](const auto& info) { return info.param.name; });

// PyTorch's numbers, from testdata/make_golden.py.
class GoldenFile {
 public:
  // Reads the next line that is not a comment: its first word, then its
  // numbers.
  bool Next(std::string& name, std::vector<double>& numbers) {
    std::string line;
    do {
      if (!std::getline(file_, line)) return false;
    } while (line.empty() || line[0] == '#');
    std::istringstream words(line);
    words >> name;
    numbers.clear();
    double number;
    while (words >> number) numbers.push_back(number);
    return true;
  }

  // Returns the numbers of the next line, whose name must be `want`.
  std::vector<double> Read(const std::string& want) {
    std::string name;
    std::vector<double> numbers;
    EXPECT_TRUE(Next(name, numbers) && name == want) << want << ", " << name;
    return numbers;
  }

 private:
  std::ifstream file_{"conformance/syncbn/testdata/torch_golden.txt"};
};

// One line of `case`, and the weight and bias that follow.
struct GoldenCase {
  GoldenCase(const std::vector<double>& numbers, GoldenFile& file)
      : n(static_cast<int64_t>(numbers[0])),
        affine(numbers[4] != 0),
        tracks(numbers[5] != 0),
        momentum(numbers[6]) {
    layer.channels = static_cast<int64_t>(numbers[1]);
    layer.hw = static_cast<int64_t>(numbers[2] * numbers[3]);
    layer.epsilon = numbers[7];
    const auto channels = static_cast<size_t>(layer.channels);
    layer.weight =
        affine ? file.Read("weight") : std::vector<double>(channels, 1);
    layer.bias = affine ? file.Read("bias") : std::vector<double>(channels);
  }

  int64_t n;
  bool affine;
  bool tracks;
  double momentum;
  ReferenceLayer layer;
};

// Compares all ranks' numbers with `got`, which holds those of the whole batch.
void ExpectNear(std::span<const Bounded> ranks, const std::vector<double>& got,
                const std::string& name) {
  size_t at = 0;
  for (const Bounded& want : ranks) {
    for (size_t i = 0; i < want.value.size(); ++i, ++at) {
      ASSERT_LT(at, got.size()) << name;
      EXPECT_LE(std::fabs(got[at] - want.value[i]), want.bound[i])
          << name << " " << at;
    }
  }
  EXPECT_EQ(at, got.size()) << name;
}

// Cuts a batch in two, one part per rank, after `first` samples.
std::vector<ReferenceBatch> Cut(const GoldenCase& c, int64_t first,
                                const std::vector<double>& x,
                                const std::vector<double>& dy) {
  const int64_t cut = first * c.layer.channels * c.layer.hw;
  return {
      {first, {x.begin(), x.begin() + cut}, {}, {dy.begin(), dy.begin() + cut}},
      {c.n - first,
       {x.begin() + cut, x.end()},
       {},
       {dy.begin() + cut, dy.end()}}};
}

void CheckGoldenStep(GoldenFile& file, const GoldenCase& c, int step,
                     std::vector<double>& mean, std::vector<double>& variance) {
  const std::vector<double> x = file.Read("x");
  const std::vector<double> dy = file.Read("dy");
  const bool training = step < 2;
  // Two ranks, one of which may be empty, together have PyTorch's batch.
  const auto ranks = Cut(c, c.n / 3, x, dy);
  const ReferenceStatistics statistics =
      training || !c.tracks
          ? StatisticsOf(c.layer, ranks, kExact)
          : ConstantStatistics(c.layer, mean, variance, kExact);
  const ReferenceResult want = ReferenceOf(c.layer, statistics, ranks, kExact);
  ExpectNear(want.y, file.Read("y"), "y");
  ExpectNear(want.dx, file.Read("dx"), "dx");
  if (c.affine) {
    ExpectNear({&want.dweight, 1}, file.Read("dweight"), "dweight");
    ExpectNear({&want.dbias, 1}, file.Read("dbias"), "dbias");
  }
  if (!c.tracks) return;
  const double weight = c.momentum < 0 ? 1.0 / (step + 1) : c.momentum;
  const ReferenceRunning running =
      EnterRunning(mean, variance, weight, /*unbiased=*/true,
                   training ? statistics : ReferenceStatistics(), kExact);
  mean = file.Read("running_mean");
  variance = file.Read("running_var");
  ExpectNear({&running.mean, 1}, mean, "running mean");
  ExpectNear({&running.variance, 1}, variance, "running variance");
}

TEST(ReferenceGoldenTest, IsWhatPyTorchGives) {
  GoldenFile file;
  std::string name;
  std::vector<double> numbers;
  int cases = 0;
  while (file.Next(name, numbers)) {
    ASSERT_EQ(name, "case");
    ASSERT_EQ(numbers.size(), 8u);
    SCOPED_TRACE(testing::Message() << "case " << cases++);
    const GoldenCase c(numbers, file);
    std::vector<double> mean;
    std::vector<double> variance;
    if (c.tracks) {
      mean = file.Read("running_mean");
      variance = file.Read("running_var");
    }
    for (int step = 0; step < kSteps; ++step) {
      CheckGoldenStep(file, c, step, mean, variance);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(cases, 6);
}

// An error of one or two units in the last place is within the bounds of the
// number's type. It is far outside the bounds of a more precise type.
TEST(ReferenceBoundTest, FollowsThePrecision) {
  BatchNormProblem problem;
  problem.channels = 3;
  problem.hw = 16;
  std::vector<double> largest;
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32,
                              DataType::kFloat16, DataType::kBFloat16}) {
    problem.type = type;
    const SolvedProblem solved = SolveProblem(problem);
    const Bounded& y = solved.steps[0].want.y[0];
    largest.push_back(*std::max_element(y.bound.begin(), y.bound.end()));
  }
  EXPECT_LT(largest[0], 1e-11);
  EXPECT_LT(largest[1], 1e-3);
  EXPECT_GT(largest[1], 1e5 * largest[0]);
  EXPECT_LT(largest[2], 3e-3);
  EXPECT_GT(largest[2], largest[1]);
  EXPECT_LT(largest[3], 3e-2);
  EXPECT_GT(largest[3], 2 * largest[2]);
}

TEST(ReferenceRunningTest, AnEmptyBatchChangesNothing) {
  const std::vector<double> mean = {1, 2};
  const std::vector<double> variance = {3, 4};
  const ReferenceRunning running =
      EnterRunning(mean, variance, 0.5, true, ReferenceStatistics(), kExact);
  EXPECT_EQ(running.mean.value, mean);
  EXPECT_EQ(running.variance.value, variance);
  EXPECT_EQ(running.mean.bound, std::vector<double>(2));
}

// The following tests check CheckMeaning and LargeProblems. CheckMeaning
// rejects a problem whose reference is meaningless for one channel, even if it
// is good for all others. Large problems reach the sizes that they are meant to
// reach.

// Returns a problem of 9 channels and 2 samples of 4 pixels.
SolvedProblem SmallProblem() {
  SolvedProblem solved = SolveProblem({.world_size = 2,
                                       .batches = RankBatches::kOneSample,
                                       .channels = 9,
                                       .hw = 4});
  EXPECT_THAT(CheckMeaning(solved), IsOk());
  return solved;
}

auto Rejects(const std::string& what) {
  return StatusIs(absl::StatusCode::kInternal, HasSubstr(what));
}

// Sets the numbers of these channels of one sample, [1, 9, 4].
void SetChannels(std::vector<double>& numbers, size_t from, size_t to,
                 double value) {
  std::fill_n(numbers.begin() + static_cast<ptrdiff_t>(from * 4),
              (to - from) * 4, value);
}

TEST(MeaningTest, RejectsABoundThatOneChannelIsTooSmallFor) {
  for (size_t c = 0; c < 9; ++c) {
    SolvedProblem solved = SmallProblem();
    // The other channels would accept a bound of 0.4.
    for (size_t i = 0; i < 9; ++i) solved.layer.weight[i] = 1;
    ASSERT_THAT(CheckMeaning(solved), IsOk());
    SetChannels(solved.steps[1].want.y[1].bound, c, c + 1, 0.4);
    ASSERT_THAT(CheckMeaning(solved), IsOk());
    solved.layer.weight[c] = -0.6;
    EXPECT_THAT(CheckMeaning(solved),
                Rejects("channel " + std::to_string(c) + ": bounds of y 1.3"));
  }
}

// By chance, up to a third of the channels may have a gradient near zero. ReLU
// may clear the gradients of all channels but one.
TEST(MeaningTest, RejectsBoundsOfGradientsAndGradientsNearZero) {
  const auto meaning = [](auto change) {
    SolvedProblem solved = SmallProblem();
    change(solved.steps);
    return CheckMeaning(solved);
  };
  EXPECT_THAT(
      meaning([](auto& steps) { steps[0].want.dx[1].bound[8 * 4] = 10; }),
      Rejects("channel 8: "));
  EXPECT_THAT(
      meaning([](auto& steps) { steps[2].want.dweight.bound[3] = 8 * 0.26; }),
      Rejects("channel 3: "));
  EXPECT_THAT(
      meaning([](auto& steps) { steps[2].want.y[0].bound[5 * 4 + 1] = NAN; }),
      Rejects("channel 5: "));
  SolvedProblem solved = SmallProblem();
  for (size_t c = 0; c < 3; ++c) solved.steps[0].want.dbias.value[c] = 0;
  EXPECT_THAT(CheckMeaning(solved), IsOk());
  solved.steps[0].want.dweight.value[7] = 0;
  EXPECT_THAT(CheckMeaning(solved), Rejects("4 channels have gradients near"));
  EXPECT_THAT(meaning([](auto& steps) {
                for (Bounded& dx : steps[1].want.dx) {
                  SetChannels(dx.value, 0, 4, 0);
                }
              }),
              Rejects("4 channels have gradients near"));
  solved = SmallProblem();
  std::vector<std::vector<double>>& upstream = solved.steps[1].want.dresidual;
  for (std::vector<double>& g : upstream) SetChannels(g, 1, 9, 0);
  EXPECT_THAT(CheckMeaning(solved), IsOk());
  for (std::vector<double>& g : upstream) SetChannels(g, 0, 1, 0);
  EXPECT_THAT(CheckMeaning(solved), Rejects("9 have none"));
}

// The CPU's kernels take other paths from these sizes on (reductions.cc,
// elementwise.cc), for aligned memory. The test checks the first step.
TEST(LargeProblemsTest, HaveSegmentsAndStreams) {
  constexpr int64_t kTwoSegments = 2 << 17;
  int last = 0;
  int first = 0;
  int streams = 0;
  for (const BatchNormProblem& problem : LargeProblems()) {
    const int64_t values = BatchSizes(problem, 0)[0] * problem.hw;
    const int64_t size = values * problem.channels;
    last += size >= kTwoSegments;
    first += values >= kTwoSegments;
    streams += problem.type == DataType::kFloat32 && problem.hw % 16 == 0 &&
               size * SizeOf(problem.type) >= 4 << 20;
  }
  EXPECT_EQ(last, 3);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(streams, 1);
}

// A cause fits numbers if all of them are wrong in its way, and fits no other
// numbers. The mutants (batch_norm_mutants.h) show that the checks name each
// cause, except the running statistics.

// BatchNormCheck does not compile with any other name.
static_assert(IsNameIn(kBatchNormChecks, "Status"));
static_assert(IsNameIn(kBatchNormChecks, "SameBits"));
static_assert(!IsNameIn(kBatchNormChecks, "Outputs"));
static_assert(!IsNameIn(kBatchNormChecks, "Out"));
static_assert(!IsNameIn(kBatchNormChecks, ""));

constexpr double kBound = 0.01;

// Returns 1, 2, 3, ..., each with the bound kBound.
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

// A cause explains nothing if its own numbers would pass, or if it comes no
// closer than the reference. The tested number is off by two bounds.
TEST_F(BestFitTest, DoesNotNameWhatExplainsNothing) {
  std::vector<double> got = want_.value;
  got[2] += 2 * kBound;
  EXPECT_EQ(Fit(got, {Times("right, nearly", 1 + 1e-5)}), "");
  EXPECT_EQ(Fit(got, {Times("within the bounds", 1 + 0.1 * kBound)}), "");
  const auto off_at = [this](size_t at) {
    return Alternative{at == 2 ? "it is off" : "another is off",
                       [this, at](size_t i, size_t) {
                         return want_.value[i] + (i == at ? 1.5 : 0) * kBound;
                       }};
  };
  EXPECT_EQ(Fit(got, {off_at(4)}), "");
  EXPECT_EQ(Fit(got, {off_at(4), off_at(2)}), ", as if it is off");
}

TEST_F(BestFitTest, AsksForEveryElementAndStretchesBounds) {
  Alternative doubled = Times("doubled", 2);
  for (size_t i = 0; i < 6; ++i) {
    std::vector<double> got = Scaled(2);
    for (const double wrong : {7.5, static_cast<double>(NAN)}) {
      got[i] = wrong;
      EXPECT_EQ(Fit(got, {doubled, Times("NaN", NAN)}), "") << i;
    }
  }
  std::vector<double> got = Scaled(2);
  got[0] += 6 * kBound;
  EXPECT_EQ(Fit(got, {doubled}), "");
  doubled.stretch = [](size_t) { return 2.0; };
  EXPECT_EQ(Fit(got, {doubled}), ", as if doubled");
}

// The problem has 66 channels with 3 values each.
TEST(FirstChannelsTest, NamesThemIfTheyAreRightAndMostOfEachOtherIsWrong) {
  const Bounded want = Wanted(66 * 3);
  const auto cause = [&want](const std::vector<double>& got, int64_t channel) {
    return FirstChannelsOnly(got, want, 3, 66, channel);
  };
  std::vector<double> got = want.value;
  got.back() = 0;
  EXPECT_EQ(cause(got, 65), "");
  std::fill(got.begin() + 65 * 3, got.end(), 0.0);
  EXPECT_EQ(cause(got, 65), "");  // Channel 64 is right.
  std::fill(got.begin() + 64 * 3, got.end(), 0.0);
  EXPECT_EQ(cause(got, 65), ", as if only the first 64 channels were computed");
  EXPECT_EQ(cause(got, 63), "");
  got[5] = NAN;
  EXPECT_EQ(cause(got, 65), "");
}

TEST(NotWrittenTest, AsksForTheBytesOfEveryWrongElement) {
  const Bounded want = Wanted(4);
  std::vector<double> got = want.value;
  got[1] = got[3] = NAN;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}),
            ", as if it had not been written, 2 of 4");
  // The wrong number is a computed NaN.
  EXPECT_EQ(NotWritten(got, want, {false, true, false, false}), "");
  got[0] = 7;
  EXPECT_EQ(NotWritten(got, want, {false, true, false, true}), "");
}

// Rank 0's y of a problem's first step, [n, c, hw].
struct Outputs {
  explicit Outputs(const BatchNormProblem& problem)
      : solved(SolveProblem(problem)), y(solved.steps[0].want.y[0].value) {}

  SolvedStep& step() { return solved.steps[0]; }
  void Normalize(const ChannelMoments& m) {
    const ReferenceLayer& layer = solved.layer;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto c = static_cast<size_t>(static_cast<int64_t>(i) / layer.hw %
                                         layer.channels);
      y[i] = (step().ranks[0].x[i] - m.mean[c]) /
                 std::sqrt(m.variance[c] + layer.epsilon) * layer.weight[c] +
             layer.bias[c];
    }
  }
  // Sets y as if all means were moved and all variances were `times` as large.
  void Normalize(double moved, double times) {
    ChannelMoments m = MomentsOf(step().statistics);
    for (double& mean : m.mean) mean += moved;
    for (double& variance : m.variance) variance *= times;
    Normalize(m);
  }
  std::string Cause(int64_t channel = 0) const {
    const BatchNormVariant variant;
    std::vector<RankRun> runs(solved.steps[0].ranks.size(), RankRun(kSteps));
    runs[0][0].y = Encode(solved.problem.type, y);
    const StepView view = {solved, variant, runs, /*step=*/0};
    return CauseOfOutput(view, 0, channel, view.Activations(0, runs[0][0].y));
  }

  SolvedProblem solved;
  std::vector<double> y;
};

class OutputCausesTest : public testing::TestWithParam<int> {
 protected:
  Outputs outputs_{{.world_size = GetParam(),
                    .batches = RankBatches::kUneven,
                    .channels = 3,
                    .hw = 5}};
};

TEST_P(OutputCausesTest, NamesNoneForOneWrongElement) {
  for (const double wrong : {7.0, 0.0, static_cast<double>(NAN)}) {
    for (const size_t i : {0, 4, 7, 29}) {
      const double right = std::exchange(outputs_.y[i], wrong);
      EXPECT_EQ(outputs_.Cause(static_cast<int64_t>(i / 5 % 3)), "")
          << wrong << " at " << i;
      outputs_.y[i] = right;
    }
  }
  // The one wrong element stands beside a mistake in all elements.
  outputs_.Normalize(0, 1.5);
  outputs_.y[2] += 0.5;
  EXPECT_EQ(outputs_.Cause(), "");
}

// No mutant uses the running statistics in training, and other causes give
// almost the same y. The test also fits a line through every element.
TEST_P(OutputCausesTest, NamesRunningStatisticsOrFitsALine) {
  const SolvedStep& step = outputs_.step();
  outputs_.Normalize({step.running_mean, step.running_variance});
  EXPECT_EQ(outputs_.Cause(), ", as if the running statistics were used");
  outputs_.Normalize(0.25, 1.5);
  EXPECT_THAT(outputs_.Cause(), StartsWith(", as if the mean were "));
  std::vector<double>& x = outputs_.step().ranks[0].x;
  x.assign(x.size(), 3);
  EXPECT_EQ(outputs_.Cause(), "");
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, OutputCausesTest, testing::Values(3, 4));

// In bfloat16, x itself has few digits. The test then only asks that no
// cancellation is named for a halved variance.
TEST(FarOutputCausesTest, DoesNotNameACancellationForAnotherVariance) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    const bool few = type == DataType::kBFloat16;
    Outputs outputs(
        {.type = type, .offsets = Offsets::kFar, .channels = 65, .hw = 15});
    for (const double times : {0.5, 0.8, 2.0}) {
      if (few && times != 0.5) continue;
      outputs.Normalize(0, times);
      EXPECT_THAT(outputs.Cause(),
                  AllOf(StartsWith(few ? "" : ", as if the mean were "),
                        Not(HasSubstr("E[x^2]"))))
          << Name(type) << " " << times;
    }
  }
}

}  // namespace
}  // namespace lockstep::conformance
