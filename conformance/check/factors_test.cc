// Factors are found where there is one, and nowhere else.
#include "conformance/check/factors.h"

#include <string>
#include <vector>

#include "conformance/check/numbers.h"
#include "conformance/check/tolerance.h"
#include "conformance/check/verdict.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const std::vector<std::string> kBoth = {"W", "b"};

Tensors Want() { return {{"W", {1, -2, 3}}, {"b", {0.5, 0.25}}}; }

AllowedErrors Tight() {
  AllowedErrors allowed;
  for (const std::string& name : kBoth) allowed[name].error = 1e-6;
  return allowed;
}

TEST(FactorsTest, FindsTheNamedOnes) {
  const auto named = NamedFactors(/*world_size=*/4, /*accumulate=*/3);
  ASSERT_EQ(named.size(), 8u);
  for (const NamedFactor& factor : named) {
    const auto found = FactorOf(kBoth, Want(), Times(factor.k, Want()), Tight(),
                                named, /*any=*/false);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->cause, factor.cause);
    EXPECT_EQ(found->k, factor.k);
  }
  EXPECT_TRUE(NamedFactors(1, 1).empty());
}

TEST(FactorsTest, FitsAnyOther) {
  const Tensors got = Times(1.75, Want());
  const auto named = NamedFactors(4, 3);
  EXPECT_FALSE(FactorOf(kBoth, Want(), got, Tight(), named, false).has_value());
  const auto found = FactorOf(kBoth, Want(), got, Tight(), named, true);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->cause, Cause::kScaled);
  EXPECT_NEAR(found->k, 1.75, 1e-12);
}

TEST(FactorsTest, MayDifferByTensor) {
  Tensors got = Times(4, Want());
  got["b"] = {0.125, 0.0625};
  const auto found =
      FactorOf(kBoth, Want(), got, Tight(), NamedFactors(4, 1), false);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->cause, Cause::kSummedNotAveraged);
  EXPECT_EQ(found->names, std::vector<std::string>{"W"});
}

// Numbers that are mostly rounding are not 4 times others.
TEST(FactorsTest, FindsNoneInWhatIsClose) {
  const Tensors want = {{"W", {1e-7, 2e-7}}}, got = {{"W", {4e-7, -7e-7}}};
  EXPECT_FALSE(FactorOf({"W"}, want, got, Tight(), NamedFactors(4, 1), true)
                   .has_value());
}

TEST(FactorsTest, OfASmallerBatch) {
  EXPECT_TRUE(BatchFactors({4, 4}, 8).empty());
  EXPECT_TRUE(BatchFactors({0, 0}, 8).empty());
  // One sample, on one rank of two: by 8, by 4, or averaged over both.
  const auto one = BatchFactors({1, 0}, 8);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(one[0].k, 1.0 / 8);
  EXPECT_EQ(one[1].k, 1.0 / 4);
  EXPECT_EQ(one[1].cause, Cause::kDividedByFullBatch);
  EXPECT_EQ(one[2].k, 1.0 / 2);
  EXPECT_EQ(one[2].cause, Cause::kMeanOfMeans);
  // Means of unlike numbers have no factor in common.
  EXPECT_EQ(BatchFactors({2, 1, 0}, 9).size(), 1u);
  EXPECT_EQ(BatchFactors({2, 2}, 8).size(), 1u);
}

TEST(FactorsTest, RejectsWhatIsNoMultiple) {
  Tensors got = Times(4, Want());
  got["W"][1] += 1e-3;
  const auto named = NamedFactors(4, 3);
  EXPECT_FALSE(FactorOf(kBoth, Want(), got, Tight(), named, true).has_value());
  EXPECT_FALSE(FactorOf(kBoth, Want(), Times(0, Want()), Tight(), named, true)
                   .has_value());
  EXPECT_FALSE(FactorOf({}, Want(), Want(), Tight(), named, true).has_value());
  EXPECT_EQ(FittedFactor({"W"}, {{"W", {0, 0}}}, {{"W", {1, 1}}}), 0);
}

}  // namespace
}  // namespace lockstep
