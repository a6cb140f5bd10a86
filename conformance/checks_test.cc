// Each comparison on made-up gradients: what it accepts, what it rejects, and
// what it says, causes and all. That it rejects the mutants is shown in
// mutants/. And what the comparisons stand on: traces that keep their bits as
// bytes, and reference runs that differ from LeNet by rounding alone.
#include "conformance/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "conformance/reference/bounded.h"
#include "conformance/reference/lenet_fixtures.h"
#include "conformance/reference/lenet_reference.h"
#include "conformance/reordering.h"
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
using testing::IsEmpty;
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

TEST_F(RunChecksTest, NameWhatIsWrong) {
  const struct {
    const char* says;
    void (*plant)(std::vector<RankTrace>& ranks);
  } kWrong[] = {
      {"rank 1 took 0 steps, one rank takes 1",
       [](auto& ranks) { ranks[1].samples.clear(); }},
      {"rank 1 has 5 parameters, must have 6",
       [](auto& ranks) { ranks[1].parameters[1].pop_back(); }},
      {"SameStart: rank 1 starts with W[3]",
       [](auto& ranks) {
         ranks[1].parameters[0][3] = std::nextafter(-8.0f, 0.0f);
       }},
      {"0 samples that one rank sees are missing, 1 are too many; 1 come more "
       "than once",
       [](auto& ranks) {
         ranks[1].samples[0] = {{7, 7}, {1, 1}};
       }},
      // And nothing more.
      {"1 samples that one rank sees are missing, 0 are too many$",
       [](auto& ranks) { ranks[0].samples[0] = {}; }},
      {"Updates: epoch 0 step 0: rank 0: W[0]",
       [](auto& ranks) {
         for (RankTrace& trace : ranks) trace.parameters[1][0] = kNan;
       }},
  };
  const std::vector<RankTrace> right = ranks_;
  for (const auto& [says, plant] : kWrong) {
    ranks_ = right;
    plant(ranks_);
    EXPECT_THAT(Message() + "$", HasSubstr(says));
  }
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
  double off = 4;
  want_.reference = [&off](std::span<const float>, const Samples&) {
    Bounded want = Want();
    want.bound[2] = 8;
    want.value[2] += off;
    return want;
  };
  EXPECT_THAT(CheckSameTraining(want_, ranks_), IsOk());
  EXPECT_EQ(largest, 0.5);
  off = 24;
  EXPECT_THAT(CheckSameTraining(want_, ranks_), Not(IsOk()));
  EXPECT_EQ(largest, 3);
}

// Causes where they are, and where they are not, beside those that the mutants
// are named by.

constexpr size_t kSize = 40;

class GradientCausesTest : public testing::Test {
 protected:
  GradientCausesTest() {
    std::mt19937 random(1);
    for (int rank = 0; rank < 3; ++rank) {
      Bounded part(kSize);
      for (size_t i = 0; i < kSize; ++i) {
        // In (-1, 1), in float32's steps.
        part.value[i] = static_cast<double>(random() >> 8) * 0x1p-23 - 1;
        part.bound[i] = 1e-6;
        want_.value[i] += part.value[i];
        want_.bound[i] += part.bound[i];
      }
      parts_.push_back(part);
    }
    ranks_.assign(3, Weighted({1, 1, 1}));
  }

  std::vector<float> Weighted(const std::vector<double>& weights) const {
    std::vector<float> sum(kSize);
    for (size_t i = 0; i < kSize; ++i) {
      double value = 0;
      for (size_t r = 0; r < weights.size(); ++r) {
        value += weights[r] * parts_[r].value[i];
      }
      sum[i] = static_cast<float>(value);
    }
    return sum;
  }

  StepGradients Step() const {
    return {specs_, want_, ranks_, parts_, samples_, {}};
  }
  // Of ranks that all have these.
  std::string CauseOf(const std::vector<float>& got) {
    ranks_.assign(3, got);
    return CauseOfGradient(Step(), 0);
  }

  const std::vector<ParameterSpec> specs_ = {{"W", {36}, 0, 36},
                                             {"b", {4}, 36, 4}};
  std::vector<int64_t> samples_ = {6, 6, 5};
  Bounded want_{kSize};
  std::vector<Bounded> parts_;
  std::vector<std::vector<float>> ranks_;
};

TEST_F(GradientCausesTest, NamesPartsWithOtherWeights) {
  EXPECT_EQ(CauseOf(Weighted({1, 1, 0})), "; rank 2's part is left out");
  EXPECT_EQ(CauseOf(Weighted({0, 2, 1})),
            "; rank 0's part is left out, rank 1's part counts 2 times");
  EXPECT_EQ(CauseOf(Weighted({1, 0, 0})),
            "; it is that of this rank's own samples: not reduced?");
  EXPECT_EQ(CauseOf(Weighted({0, 1, 0})),
            "; rank 0's part is left out, rank 2's part is left out");
  EXPECT_EQ(CauseOf(Weighted({17.0 / 18, 17.0 / 18, 17.0 / 15})),
            "; it is the mean of the ranks' means, without weights");
}

TEST_F(GradientCausesTest, NamesAnotherCountOfSamples) {
  EXPECT_EQ(CauseOf(Weighted({17.0 / 24, 17.0 / 24, 17.0 / 24})),
            "; it is the sum over 17 samples divided by 24: another batch's "
            "count?");
  EXPECT_EQ(CauseOf(Weighted({2, 2, 2})), "");  // Divided by 8.5?
  EXPECT_EQ(CauseOf(Weighted({-1, -1, -1})), "");
}

TEST_F(GradientCausesTest, LeavesTheWorldSizeToCheckGradients) {
  EXPECT_EQ(CauseOf(Weighted({3, 3, 3})), "");
  const double third = 1.0 / 3;
  EXPECT_EQ(CauseOf(Weighted({third, third, third})), "");
  EXPECT_EQ(CauseOf(Weighted({1, 1, 1})).find("counts"), std::string::npos);
}

TEST_F(GradientCausesTest, LeavesOutRanksWithoutSamples) {
  samples_ = {6, 6, 0};
  parts_[2] = Bounded(kSize);
  want_ = Bounded(kSize);
  for (size_t i = 0; i < kSize; ++i) {
    want_.value[i] = parts_[0].value[i] + parts_[1].value[i];
    want_.bound[i] = 2e-6;
  }
  EXPECT_EQ(CauseOf(Weighted({2, 2, 0})),
            "; it is the sum over 12 samples divided by 6: another batch's "
            "count?");
  EXPECT_EQ(CauseOf(Weighted({1, 0.5, 0})), "; rank 1's part counts 0.5 times");
  samples_ = {6, 0, 0};
  parts_[1] = Bounded(kSize);
  want_.value = parts_[0].value;
  EXPECT_EQ(CauseOf(Weighted({1.0 / 3, 0, 0})), "");
}

TEST_F(GradientCausesTest, NamesValuesOfAnotherPlace) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::swap_ranges(got.begin(), got.begin() + 12, got.begin() + 12);
  EXPECT_EQ(CauseOf(got),
            "; it has there the values of W[12]: in another's place?");
}

TEST_F(GradientCausesTest, NamesATensorOfZeros) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::fill(got.begin() + 36, got.end(), 0.0f);
  EXPECT_EQ(CauseOf(got), "; all of b is zero: left out?");
  got[37] = 0.5f;
  EXPECT_EQ(CauseOf(got), "");
}

// Near enough, but not as rounding is.
TEST_F(GradientCausesTest, TakesNoOtherErrorForRounding) {
  std::vector<float> got = Weighted({1, 1, 1});
  got[7] *= 1.001f;
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(Weighted({1.002, 1.002, 1.002})), "");
  got = Weighted({1, 1, 1});
  for (float& v : got) {  // As float16 would round.
    v = std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x1000u) &
                             0xffffe000u);
  }
  EXPECT_EQ(CauseOf(got), "");
}

TEST_F(GradientCausesTest, NamesNothingElse) {
  std::vector<float> got = Weighted({1, 1, 1});
  got[7] += 1;
  EXPECT_EQ(CauseOf(got), "");
  got[7] = std::nanf("");
  EXPECT_EQ(CauseOf(got), "");
  got[7] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(std::vector<float>(kSize, 0.25f)), "");
  // Parts that cannot be told apart.
  parts_[1] = parts_[0];
  EXPECT_EQ(CauseOf(Weighted({3, 0, 1})), "");
}

TEST_F(GradientCausesTest, NamesWhyRanksDisagree) {
  for (size_t rank = 0; rank < 3; ++rank) {
    std::vector<double> own(3);
    own[rank] = 1;
    const std::vector<float> part = Weighted(own);
    std::copy(part.begin(), part.begin() + 20, ranks_[rank].begin());
  }
  EXPECT_EQ(CauseOfDisagreement(Step(), 2),
            "; each has there the gradient of its own samples: not reduced?");
  ranks_[0] = Weighted({1, 1, 1});
  EXPECT_THAT(CauseOfDisagreement(Step(), 2),
              HasSubstr("; rank 2 has there the gradient of its own samples"));
  ranks_[2][3] += 1;
  EXPECT_EQ(CauseOfDisagreement(Step(), 2), "");
  ranks_[2] = ranks_[0];
  ranks_[2][3] = std::nextafter(ranks_[2][3], 9.0f);
  EXPECT_EQ(CauseOfDisagreement(Step(), 2),
            "; both are right within rounding: added in different orders?");
}

constexpr float kRate = 0.1f;

// An update of 40 parameters in two tensors.
class UpdateCausesTest : public testing::Test {
 protected:
  UpdateCausesTest() {
    std::mt19937 random(1);
    for (size_t i = 0; i < 40; ++i) {
      // In (-1, 1), in float32's steps.
      before_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
      gradient_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
    }
    after_ = Updated(1, 1);
  }

  std::vector<float> Updated(float keeps, float times) const {
    std::vector<float> after;
    for (size_t i = 0; i < 40; ++i) {
      after.push_back(keeps * before_[i] - times * kRate * gradient_[i]);
    }
    return after;
  }
  std::string Cause(size_t wrong = 0) const {
    return CauseOfUpdate({specs_, before_, after_, gradient_, kRate, 3}, wrong);
  }

  const std::vector<ParameterSpec> specs_ = {{"a", {10}, 0, 10},
                                             {"b", {30}, 10, 30}};
  std::vector<float> before_, gradient_, after_;
};

TEST_F(UpdateCausesTest, ARightOrUnexplainedOneHasNone) {
  EXPECT_THAT(Cause(), IsEmpty());
  for (size_t i = 0; i < 40; ++i) after_[i] += i % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_THAT(Cause(), IsEmpty());
}

// One wrong element makes a fit that shrinks, or grows, the others too.
TEST_F(UpdateCausesTest, OneWrongElementIsNoDecay) {
  for (const size_t wrong : {0u, 7u, 20u, 39u}) {
    after_ = Updated(1, 1);
    after_[wrong] += 0.001f;
    EXPECT_THAT(Cause(wrong), IsEmpty()) << wrong;
  }
}

TEST_F(UpdateCausesTest, NamesOneTensorsDecayAStepOfAnotherSizeAndNan) {
  const std::vector<float> decayed = Updated(0.5f, 1);
  for (size_t i = 0; i < 10; ++i) after_[i] = decayed[i];
  EXPECT_EQ(Cause(),
            "; values of a shrink by 0.5 of themselves: weight decay?");
  EXPECT_THAT(Cause(/*wrong=*/10), IsEmpty());
  after_ = Updated(1, 2);
  EXPECT_EQ(Cause(), "; the step is 2 times it");
  after_ = Updated(1, 3);
  EXPECT_EQ(Cause(),
            "; the step is 3 times it, the world size: the learning rate "
            "multiplied by the ranks?");
  gradient_[3] = gradient_[7] = std::nanf("");
  EXPECT_EQ(Cause(/*wrong=*/3),
            "; its gradient is NaN, one of 2 elements of the gradient that "
            "are");
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
  for (const auto& parameters : {WellConditionedLeNet(1), HeLeNet(1)}) {
    const Bounded want =
        LeNetReference(parameters, samples.images, samples.labels, 1).gradient;
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const auto got = ReorderedLeNet(seed).Gradient(parameters, samples);
      ASSERT_THAT(got, IsOk());
      EXPECT_THAT(CheckGradients(LeNetSpecs(), want, {{*got}}), IsOk()) << seed;
    }
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
