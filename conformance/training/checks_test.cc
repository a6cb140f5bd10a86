// Tests each comparison on made-up gradients: what it accepts and rejects, its
// message and the cause. mutants/ tests that the checks reject the mutants.
// Also tests their basis: traces keep their bits as bytes, and reference runs
// differ from LeNet only by rounding.
#include "conformance/training/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/causes.h"
#include "conformance/training/reordered.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/lenet_reference.h"

namespace lockstep::conformance {
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

std::string MessageOf(const absl::Status& status) {
  EXPECT_EQ(status.code(),
            status.ok() ? StatusCode::kOk : StatusCode::kDataLoss);
  return std::string(status.message());
}

std::string GradientsMessage(const std::vector<std::vector<float>>& got,
                             const Bounded& want = Want()) {
  return MessageOf(CheckGradients(Specs(), want, got));
}

TEST(CheckGradientsTest, NamesRankElementFactorAndItsCause) {
  std::vector<std::vector<float>> got = {Times(1), Times(1)};
  got[1][4] = 5.2f;
  EXPECT_THAT(GradientsMessage(got),
              AllOf(HasSubstr("rank 1: gradient b[0] is 5.19"),
                    HasSubstr("must be 5 +- 0.1"), Not(HasSubstr("times"))));
  EXPECT_THAT(GradientsMessage({{1, 2}}), HasSubstr("has 2 gradient"));
  const auto message = [](float k) {
    return GradientsMessage(std::vector<std::vector<float>>(4, Times(k)));
  };
  EXPECT_THAT(message(4), HasSubstr("4 times it, the world size: summed"));
  EXPECT_THAT(message(0.25), HasSubstr("0.25 times it, 1 / world size"));
  EXPECT_THAT(message(1.5), EndsWith("; the gradient is 1.5 times it"));
}

// NaN in the reference accepts nothing.
TEST(CheckGradientsTest, RejectsEveryElementOutOfBoundAndNan) {
  for (size_t i = 0; i < 6; ++i) {
    for (const float wrong : {kNan, std::numeric_limits<float>::infinity(),
                              Times(1)[i] + 0.11f, Times(1)[i] - 0.11f}) {
      std::vector<std::vector<float>> got = {Times(1)};
      got[0][i] = wrong;
      EXPECT_THAT(GradientsMessage(got), HasSubstr("gradient"))
          << i << " " << wrong;
    }
  }
  Bounded want = Want();
  want.bound[0] = kNan;
  EXPECT_THAT(GradientsMessage({Times(1)}, want), HasSubstr("W[0]"));
}

TEST(CheckBitsAgreeTest, AcceptsEqualBitsOnly) {
  const auto message = [](const std::vector<std::vector<float>>& got) {
    return MessageOf(CheckBitsAgree(Specs(), "parameters", got));
  };
  EXPECT_EQ(message({}), "");
  std::vector<std::vector<float>> got = {Times(1), Times(1), Times(1)};
  EXPECT_EQ(message(got), "");
  got[2][5] = std::nextafter(got[2][5], 0.0f);
  EXPECT_THAT(message(got),
              HasSubstr("ranks 0 and 2 disagree on the parameters: b[1] is -6 "
                        "and -5.9999995"));
  got[2].pop_back();
  EXPECT_THAT(message(got), HasSubstr("6 and 5 elements"));
  EXPECT_THAT(message({{0.0f}, {-0.0f}}), HasSubstr("W[0] is 0 and -0"));
}

// One step of two ranks with one sample each. The gradient is 1 times the sum
// of the sample.
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
      // The message ends there.
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

// Two float32 roundings, of the product and of the difference, are accepted. A
// result that is one unit in the last place further away is not.
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

// One gradient is off by half its bound, another by three times its bound.
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

// The causes, where they apply and where they do not. The mutants test the
// causes that they are named by.

constexpr size_t kSize = 40;

// Returns a number in (-1, 1), in float32's steps.
float Draw(std::mt19937& random) {
  return static_cast<float>(random() >> 8) * 0x1p-23f - 1;
}

class GradientCausesTest : public testing::Test {
 protected:
  GradientCausesTest() {
    std::mt19937 random(1);
    for (int rank = 0; rank < 3; ++rank) {
      Bounded part(kSize);
      for (size_t i = 0; i < kSize; ++i) {
        part.value[i] = Draw(random);
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
  // Returns the cause for ranks that all have this gradient.
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
  const auto same = [](double weight) { return std::vector(3, weight); };
  const std::pair<std::vector<double>, const char*> kCauses[] = {
      {{1, 1, 0}, "; rank 2's part is left out"},
      {{0, 2, 1}, "; rank 0's part is left out, rank 1's part counts 2 times"},
      {{1, 0, 0}, "; it is that of this rank's own samples: not reduced?"},
      {{0, 1, 0}, "; rank 0's part is left out, rank 2's part is left out"},
      {{17.0 / 18, 17.0 / 18, 17.0 / 15},
       "; it is the mean of the ranks' means, without weights"},
      {same(17.0 / 24),
       "; it is the sum over 17 samples divided by 24: another batch's count?"},
      {same(2), ""},  // 8.5 is no count.
      {same(-1), ""},
      {same(1), ""},
      {same(1.002), ""},
      // CheckGradients names the world size.
      {same(3), ""},
      {same(1.0 / 3), ""}};
  for (const auto& [weights, cause] : kCauses) {
    EXPECT_EQ(CauseOf(Weighted(weights)), cause);
  }
}

TEST_F(GradientCausesTest, NamesATensorThatIsTheSumOfTheStepBefore) {
  std::mt19937 random(2);
  std::vector<float> before(kSize);
  for (float& value : before) value = Draw(random);
  std::vector<float> got = Weighted({1, 1, 1});
  for (size_t i = 0; i < 36; ++i) got[i] = before[i] + before[i] + before[i];
  ranks_.assign(3, got);
  StepGradients step = Step();
  EXPECT_EQ(CauseOfGradient(step, 0), "");  // The first step.
  step.before = before;
  EXPECT_EQ(CauseOfGradient(step, 0),
            "; all of W is 3 times the sum of the step before: reduced before "
            "it was computed?");
  before[35] += 1e-5f;
  EXPECT_EQ(CauseOfGradient(step, 0), "");
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

TEST_F(GradientCausesTest, NamesValuesOfAnotherPlaceAndATensorOfZeros) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::swap_ranges(got.begin(), got.begin() + 12, got.begin() + 12);
  EXPECT_EQ(CauseOf(got),
            "; it has there the values of W[12]: in another's place?");
  got = Weighted({1, 1, 1});
  std::fill(got.begin() + 36, got.end(), 0.0f);
  EXPECT_EQ(CauseOf(got), "; all of b is zero: left out?");
  got[37] = 0.5f;
  EXPECT_EQ(CauseOf(got), "");
}

TEST_F(GradientCausesTest, NamesNothingElse) {
  const std::vector<float> right = Weighted({1, 1, 1});
  // Errors that are small, but not like rounding; and arbitrary ones.
  for (const float wrong : {right[7] * 1.001f, right[7] + 1, kNan,
                            std::numeric_limits<float>::infinity()}) {
    std::vector<float> got = right;
    got[7] = wrong;
    EXPECT_EQ(CauseOf(got), "") << wrong;
  }
  std::vector<float> got = right;
  for (float& v : got) {  // As float16 would round.
    v = std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x1000u) &
                             0xffffe000u);
  }
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(std::vector<float>(kSize, 0.25f)), "");
  // Parts that are equal cannot be distinguished.
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
      before_.push_back(Draw(random));
      gradient_.push_back(Draw(random));
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

// With one wrong element, the best fit would shrink or grow the others too.
TEST_F(UpdateCausesTest, ARightOrUnexplainedOneHasNone) {
  EXPECT_THAT(Cause(), IsEmpty());
  for (size_t i = 0; i < 40; ++i) after_[i] += i % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_THAT(Cause(), IsEmpty());
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

// NaN and the sign of zero are kept too.
TEST(RankBytesTest, KeepTheBitsAndShowThatSomeAreMissing) {
  std::vector<std::vector<float>> arrays = {{1, kNan}, {}, {-0.0f}};
  std::string text = "text";
  int64_t number = 7;
  const auto pass = [&](auto& bytes) {
    bytes(arrays);
    bytes(text);
    bytes(number);
  };
  RankBytesWriter writer;
  pass(writer);
  const std::string longer = writer.bytes + "x";
  for (size_t size = 0; size < writer.bytes.size(); ++size) {
    RankBytesReader reader(absl::string_view(longer).substr(0, size));
    pass(reader);
    EXPECT_TRUE(reader.too_short) << size;
  }
  RankBytesReader reader(longer);
  pass(reader);
  EXPECT_FALSE(reader.too_short);
  EXPECT_EQ(reader.rest, "x");
  RankBytesWriter again;
  pass(again);
  EXPECT_EQ(again.bytes, writer.bytes);
}

// The gradient is within the rigorous bound of the float64 reference in any
// order. No two seeds give the same bits; otherwise they would show nothing
// about rounding.
TEST(ReorderedLeNetTest, GradientIsLeNetsInAnotherOrder) {
  SetComputeThreads(1);
  std::vector<int64_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  const Samples samples = GatherSamples(BlobDataset(16), all);
  for (const auto& parameters : {WellConditionedLeNet(1), HeLeNet(1)}) {
    const Bounded want =
        LeNetReference(parameters, samples.images, samples.labels, 1).gradient;
    std::set<std::vector<float>> orders;
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const auto got = ReorderedLeNet(seed).Gradient(parameters, samples);
      ASSERT_THAT(got, IsOk());
      EXPECT_THAT(CheckGradients(LeNetSpecs(), want, {{*got}}), IsOk()) << seed;
      orders.insert(*got);
    }
    EXPECT_EQ(orders.size(), 3);
  }
}

}  // namespace
}  // namespace lockstep::conformance
