// Each comparison on made-up gradients: what it accepts, what it rejects, and
// what it says. That it rejects the mutants is shown in mutants/. And what the
// comparisons stand on: traces that keep their bits as bytes, and reference
// runs that differ from LeNet by rounding alone.
#include "conformance/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "conformance/reference/bounded.h"
#include "conformance/reference/lenet_fixtures.h"
#include "conformance/reference/lenet_reference.h"
#include "conformance/reordering.h"
#include "conformance/trace.h"
#include "conformance/training_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/model.h"

namespace lockstep {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<ParameterSpec>& Specs() {
  static const auto& specs =
      *new std::vector<ParameterSpec>{{"W", {2, 2}, 0, 4}, {"b", {2}, 4, 2}};
  return specs;
}

Bounded Want() {
  Bounded want(6);
  want.value = {1, -2, 3, -4, 5, -6};
  want.bound = {0.1, 0.1, 0.1, 0.1, 0.1, 0};
  return want;
}

std::vector<float> Times(float k) {
  return {k, -2 * k, 3 * k, -4 * k, 5 * k, -6 * k};
}

TEST(CheckGradientsTest, AcceptsWhatIsWithinTheBound) {
  EXPECT_THAT(CheckGradients(Specs(), Want(), {}), IsOk());
  const std::vector<std::vector<float>> got = {
      Times(1), {1.05f, -2.05f, 2.95f, -4.0f, 5.09f, -6.0f}};
  EXPECT_THAT(CheckGradients(Specs(), Want(), got), IsOk());
}

TEST(CheckGradientsTest, NamesRankTensorAndElement) {
  std::vector<std::vector<float>> got = {Times(1), Times(1)};
  got[1][4] = 5.2f;
  EXPECT_THAT(
      CheckGradients(Specs(), Want(), got),
      StatusIs(StatusCode::kDataLoss,
               AllOf(HasSubstr("rank 1: gradient b[0] is 5.19"),
                     HasSubstr("must be 5 +- 0.1"), Not(HasSubstr("times")))));
}

TEST(CheckGradientsTest, RejectsEveryElementOutOfBoundAndNan) {
  for (size_t i = 0; i < 6; ++i) {
    for (const float wrong : {kNan, std::numeric_limits<float>::infinity(),
                              Times(1)[i] + 0.11f, Times(1)[i] - 0.11f}) {
      std::vector<std::vector<float>> got = {Times(1)};
      got[0][i] = wrong;
      EXPECT_THAT(CheckGradients(Specs(), Want(), got),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("gradient")))
          << i << " " << wrong;
    }
  }
}

TEST(CheckGradientsTest, NanInTheReferenceAcceptsNothing) {
  Bounded want = Want();
  want.bound[0] = kNan;
  const std::vector<std::vector<float>> got = {Times(1)};
  EXPECT_THAT(CheckGradients(Specs(), want, got),
              StatusIs(StatusCode::kDataLoss, HasSubstr("W[0]")));
}

TEST(CheckGradientsTest, NamesTheFactorAndItsCause) {
  const auto message = [](float k) {
    const std::vector<std::vector<float>> got(4, Times(k));
    return std::string(CheckGradients(Specs(), Want(), got).message());
  };
  EXPECT_THAT(message(4), HasSubstr("4 times it, the world size: summed"));
  EXPECT_THAT(message(0.25), HasSubstr("0.25 times it, 1 / world size"));
  EXPECT_THAT(message(1.5), EndsWith("; the gradient is 1.5 times it"));
}

TEST(CheckGradientsTest, RejectsAnotherSize) {
  const std::vector<std::vector<float>> got = {{1, 2}};
  EXPECT_THAT(CheckGradients(Specs(), Want(), got),
              StatusIs(StatusCode::kDataLoss, HasSubstr("has 2 gradient")));
}

TEST(CheckBitsAgreeTest, AcceptsEqualBitsOnly) {
  EXPECT_THAT(CheckBitsAgree(Specs(), "parameters", {}), IsOk());
  std::vector<std::vector<float>> got = {Times(1), Times(1), Times(1)};
  EXPECT_THAT(CheckBitsAgree(Specs(), "parameters", got), IsOk());
  got[2][5] = std::nextafter(got[2][5], 0.0f);
  EXPECT_THAT(CheckBitsAgree(Specs(), "parameters", got),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("ranks 0 and 2 disagree on the parameters: "
                                 "b[1] is -6 and -5.9999995")));
  got[2].pop_back();
  EXPECT_THAT(CheckBitsAgree(Specs(), "parameters", got),
              StatusIs(StatusCode::kDataLoss, HasSubstr("6 and 5 elements")));
}

TEST(CheckBitsAgreeTest, TellsZeroFromMinusZero) {
  const std::vector<std::vector<float>> got = {{0.0f}, {-0.0f}};
  EXPECT_THAT(CheckBitsAgree(Specs(), "gradients", got),
              StatusIs(StatusCode::kDataLoss, HasSubstr("W[0] is 0 and -0")));
}

// One step of two ranks with a sample each, gradient 1 times the sample's sum.
class RunChecksTest : public testing::Test {
 protected:
  RunChecksTest() {
    want_.specs = Specs();
    want_.start = Times(2);
    want_.learning_rate = 0.5f;
    want_.steps = {{0, 0, {{7, 8}, {1, 2}}}};
    want_.reference = [](std::span<const float>, const Samples&) {
      return Want();
    };
    for (const float pixel : {8.0f, 7.0f}) {
      RankTrace trace;
      trace.parameters = {Times(2), Times(1.5)};
      trace.gradients = {Times(1)};
      trace.samples = {{{pixel}, {static_cast<int32_t>(pixel) - 6}}};
      ranks_.push_back(trace);
    }
  }

  std::string Message() {
    return std::string(CheckSameTraining(want_, ranks_).message());
  }

  Expectation want_;
  std::vector<RankTrace> ranks_;
};

TEST_F(RunChecksTest, AcceptTheSameTraining) {
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
}

TEST_F(RunChecksTest, RejectMissingSteps) {
  ranks_[1].samples.clear();
  EXPECT_THAT(Message(), HasSubstr("rank 1 took 0 steps, one rank takes 1"));
}

TEST_F(RunChecksTest, RejectParametersOfAnotherSize) {
  ranks_[1].parameters[1].pop_back();
  EXPECT_THAT(Message(), HasSubstr("rank 1 has 5 parameters, must have 6"));
}

TEST_F(RunChecksTest, RejectAnotherStart) {
  ranks_[1].parameters[0][3] = std::nextafter(-8.0f, 0.0f);
  EXPECT_THAT(Message(), HasSubstr("SameStart: rank 1 starts with W[3]"));
}

TEST_F(RunChecksTest, RejectASampleSeenTwice) {
  ranks_[1].samples[0] = {{7, 7}, {1, 1}};
  EXPECT_THAT(Message(),
              HasSubstr("0 samples that one rank sees are missing, 1 are too "
                        "many; 1 come more than once"));
}

TEST_F(RunChecksTest, RejectASampleLeftOut) {
  ranks_[0].samples[0] = {};
  EXPECT_THAT(Message(),
              AllOf(HasSubstr("1 samples that one rank sees are missing, 0 are "
                              "too many"),
                    Not(HasSubstr("more than once"))));
}

TEST_F(RunChecksTest, AcceptOtherShards) {
  ranks_[0].samples[0] = {};
  ranks_[1].samples[0] = {{8, 7}, {2, 1}};
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
}

// A product rounded to float32, then a difference rounded to float32, are
// accepted; a result one unit in the last place further away is not.
TEST_F(RunChecksTest, UpdatesMayRoundTwiceAndNoMore) {
  const float third = 1.0f / 3;
  want_.learning_rate = third;
  for (RankTrace& trace : ranks_) {
    for (size_t i = 0; i < 6; ++i) {
      const float product = third * trace.gradients[0][i];
      trace.parameters[1][i] = trace.parameters[0][i] - product;
    }
  }
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
  for (RankTrace& trace : ranks_) {
    float& v = trace.parameters[1][5];
    v = std::nextafter(std::nextafter(v, 0.0f), 0.0f);
  }
  EXPECT_THAT(Message(), HasSubstr("Updates: epoch 0 step 0: rank 0: b[1]"));
}

// A gradient that is half its bound off, and one that is off by three.
TEST_F(RunChecksTest, MeasureGradients) {
  double largest = 0;
  want_.measure = [&](double error) { largest = std::max(largest, error); };
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
  EXPECT_EQ(largest, 0);
  want_.reference = [](std::span<const float>, const Samples&) {
    Bounded want = Want();
    want.bound[2] = 8;
    want.value[2] += 4;
    return want;
  };
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
  EXPECT_EQ(largest, 0.5);
  want_.reference = [](std::span<const float>, const Samples&) {
    Bounded want = Want();
    want.bound[2] = 8;
    want.value[2] += 24;
    return want;
  };
  EXPECT_THAT(CheckSameTraining(want_, ranks_), Not(IsOk()));
  EXPECT_EQ(largest, 3);
}

TEST_F(RunChecksTest, NanFailsTheUpdate) {
  for (RankTrace& trace : ranks_) trace.parameters[1][0] = kNan;
  EXPECT_THAT(Message(), HasSubstr("Updates: epoch 0 step 0: rank 0: W[0]"));
}

TEST(TraceTest, SurvivesTheWayThroughBytes) {
  RankTrace trace;
  trace.parameters = {{1, kNan}, {}};
  trace.gradients = {{-0.0f, 3}};
  trace.samples = {{{0.5f}, {9}}, {}};
  const std::string bytes = SerializeTrace(trace);
  const auto parsed = ParseTrace(bytes);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(SerializeTrace(*parsed), bytes);
  EXPECT_EQ(parsed->samples[0].labels, trace.samples[0].labels);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(ParseTrace(bytes.substr(0, size)),
                StatusIs(StatusCode::kDataLoss, HasSubstr("too early")));
  }
  EXPECT_THAT(ParseTrace(bytes + "x"),
              StatusIs(StatusCode::kDataLoss, HasSubstr("after its end")));
}

Samples Blobs() {
  std::vector<int64_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  return GatherSamples(BlobDataset(16), all);
}

// Within the rigorous bound of the float64 reference, whatever the order.
TEST(ReorderedLeNetTest, GradientIsLeNets) {
  SetComputeThreads(1);
  const Samples samples = Blobs();
  const std::vector<float> parameters = WellConditionedLeNet(1);
  const Bounded want =
      LeNetReference(parameters, samples.images, samples.labels, 1).gradient;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const auto got = ReorderedLeNet(seed).Gradient(parameters, samples);
    ASSERT_THAT(got, IsOk());
    EXPECT_THAT(CheckGradients(LeNetSpecs(), want, {{*got}}), IsOk()) << seed;
  }
}

// Else they would say nothing about rounding: no two seeds give the same bits.
TEST(ReorderedLeNetTest, SumsAreAddedInAnotherOrder) {
  SetComputeThreads(1);
  const Samples samples = Blobs();
  const std::vector<float> parameters = HeLeNet(1);
  const auto a = ReorderedLeNet(1).Gradient(parameters, samples);
  const auto b = ReorderedLeNet(2).Gradient(parameters, samples);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_NE(*a, *b);
}

}  // namespace
}  // namespace lockstep
