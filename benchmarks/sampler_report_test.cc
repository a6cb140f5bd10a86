// The formulas, on numbers that can be worked out by hand.
#include "benchmarks/sampler_report.h"

#include <vector>

#include "benchmarks/sampler_example.h"
#include "benchmarks/sampler_measure.h"
#include "benchmarks/sampler_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::DoubleEq;
using ::testing::Eq;
using ::testing::Optional;
using ::testing::SizeIs;

TEST(DeriveRowsTest, DividesMedians) {
  const DrawRows rows = DeriveRows(ExampleEpoch());
  EXPECT_EQ(rows.size, 1'281'167);
  EXPECT_EQ(rows.rounds, 3);
  ASSERT_THAT(rows.rows, SizeIs(4));
  const DrawRow& torch = rows.rows[0];
  EXPECT_EQ(torch.count, 160'146);
  EXPECT_EQ(torch.checksum, 4'000'000'000u);
  EXPECT_EQ(torch.median, 0.004);
  EXPECT_EQ(torch.min, 0.003);
  EXPECT_EQ(torch.max, 0.005);
  EXPECT_THAT(torch.indices_per_second, Optional(DoubleEq(160'146 / 0.004)));
  EXPECT_THAT(torch.table_ratio, Optional(DoubleEq(0.5)));
  EXPECT_THAT(torch.torch_ratio, Optional(DoubleEq(25)));
  EXPECT_THAT(rows.rows[1].table_ratio, Optional(DoubleEq(0.25)));
  EXPECT_THAT(rows.rows[1].torch_ratio, Optional(DoubleEq(12.5)));
}

TEST(DeriveRowsTest, ComparesOnlyOurOwn) {
  const DrawRows rows = DeriveRows(ExampleEpoch());
  EXPECT_TRUE(rows.rows[2].indices_per_second.has_value());
  EXPECT_FALSE(rows.rows[3].indices_per_second.has_value());
  for (const int other : {2, 3}) {
    EXPECT_FALSE(rows.rows[other].table_ratio.has_value());
    EXPECT_FALSE(rows.rows[other].torch_ratio.has_value());
  }
}

TEST(DeriveRowsTest, HasNoRatioWithoutPyTorch) {
  MeasuredEpoch measured = ExampleEpoch();
  measured.draws.erase(measured.draws.begin() + 2);
  const DrawRows rows = DeriveRows(measured);
  EXPECT_TRUE(rows.rows[0].table_ratio.has_value());
  EXPECT_FALSE(rows.rows[0].torch_ratio.has_value());
}

TEST(BarsTest, HoldValuesAgainstGoals) {
  const std::vector<Bar> bars = BarsOf(ExampleReport());
  ASSERT_THAT(bars, SizeIs(4));
  EXPECT_THAT(bars[0].value, Optional(DoubleEq(25)));
  EXPECT_FALSE(bars[1].value.has_value());  // That size was not measured.
  EXPECT_THAT(bars[2].value, Optional(Eq(80)));
  EXPECT_THAT(bars[3].value, Optional(Eq(0.25)));
  EXPECT_TRUE(bars[0].Met());
  EXPECT_FALSE(bars[1].Met());
  EXPECT_TRUE(bars[2].Met());
  EXPECT_TRUE(bars[3].Met());
}

TEST(BarsTest, AreMissedBelowAndAbove) {
  SamplerReport report = ExampleReport();
  report.sizes[0].rows[0].torch_ratio = 19.9;
  report.keyed = DeriveKeyed({49e6}, {50e-9}, (1 << 20) + 1);
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
  report.keyed.reset();
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
}

}  // namespace
}  // namespace lockstep
