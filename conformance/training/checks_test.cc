// Tests each comparison on made-up gradients: what it accepts and rejects, and
// its message. mutants/ tests that the checks reject the mutants. Also tests
// their basis: traces keep their bits as bytes, and reference runs differ from
// LeNet only by rounding.
#include "conformance/training/checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "conformance/rank_bytes.h"
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
