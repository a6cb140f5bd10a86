// The formulas, on numbers that can be checked by hand.
#include "benchmarks/all_reduce_report.h"

#include <cstdint>

#include "benchmarks/all_reduce_example.h"
#include "benchmarks/all_reduce_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::SizeIs;

constexpr double kMessage = 64 << 20;

TEST(DeriveSizeTest, ComputesStatistics) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[1];
  EXPECT_EQ(size.bytes, 64 << 20);
  EXPECT_EQ(size.count, 16 << 20);
  EXPECT_EQ(size.rounds, 4);
  ASSERT_THAT(size.rows, SizeIs(2));
  const AllReduceRow& ours = size.rows[0];
  const double seconds = 1e-9 * kMessage / 8;
  EXPECT_EQ(ours.samples, 4);
  EXPECT_DOUBLE_EQ(ours.p50, seconds);
  EXPECT_DOUBLE_EQ(ours.p95, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.p99, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.min, seconds / 2);
  EXPECT_DOUBLE_EQ(ours.max, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.mean, 1.125 * seconds);
}

TEST(DeriveSizeTest, ComputesBandwidths) {
  for (const int world_size : {1, 2, 4}) {
    AllReduceSettings settings;
    settings.world_size = world_size;
    const MeasuredSize measured = {
        .bytes = 8000,
        .rounds = 1,
        .subjects = {{{{TeamKind::kProcesses}}, {1e-6}, 0},
                     {{{TeamKind::kCopy}}, {1e-6}, 0}}};
    const AllReduceSize size = DeriveSize(settings, measured);
    EXPECT_DOUBLE_EQ(size.rows[0].alg_bw, 8e9);
    const double bus[] = {0, 0, 8e9, 0, 12e9};
    EXPECT_DOUBLE_EQ(size.rows[0].bus_bw, bus[world_size]) << world_size;
  }
}

TEST(DeriveSizeTest, BoundsByCopiesOverAsMuchMemory) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[1];
  EXPECT_DOUBLE_EQ(size.copy_bw, 40e9);
  ASSERT_TRUE(size.bound_seconds.has_value());
  EXPECT_DOUBLE_EQ(*size.bound_seconds, 4 * kMessage / 40e9);
  EXPECT_DOUBLE_EQ(*size.rows[0].bound_fraction, 0.8);
  EXPECT_DOUBLE_EQ(*size.rows[1].bound_fraction, 0.1);
}

// Out of place, the copies read and write twice as much.
TEST(DeriveSizeTest, KnowsWhatTheCopiesMoved) {
  AllReduceSettings settings;
  settings.world_size = 3;
  const MeasuredSize measured = {.bytes = 1 << 20,
                                 .rounds = 1,
                                 .subjects = {{{{TeamKind::kCopy}}, {1.0}, 0}}};
  EXPECT_DOUBLE_EQ(DeriveSize(settings, measured).copy_bw, 3 << 20);
  settings.in_place = false;
  EXPECT_DOUBLE_EQ(DeriveSize(settings, measured).copy_bw, 6 << 20);
}

TEST(DeriveSizeTest, GivesNoBoundForSmallMessagesOrOneRank) {
  AllReduceSettings settings;
  MeasuredSize measured = {.bytes = kBoundFrom - 4,
                           .rounds = 1,
                           .subjects = {{{{TeamKind::kThreads}}, {1.0}, 0},
                                        {{{TeamKind::kCopy}}, {1.0}, 0}}};
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
  EXPECT_FALSE(
      DeriveSize(settings, measured).rows[0].bound_fraction.has_value());
  measured.bytes = kBoundFrom;
  EXPECT_TRUE(DeriveSize(settings, measured).bound_seconds.has_value());
  settings.world_size = 1;
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
}

TEST(DeriveSizeTest, ComparesOursWithThePeersThatAreThere) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[0];
  ASSERT_THAT(size.rows[0].ratios, SizeIs(1));
  EXPECT_EQ(size.rows[0].ratios[0].peer, TeamKind::kOpenMpi);
  EXPECT_DOUBLE_EQ(size.rows[0].ratios[0].ratio, 8);
  EXPECT_THAT(size.rows[1].ratios, SizeIs(0));
}

TEST(CountWrongTest, AddsEveryRow) {
  AllReduceReport report = ExampleAllReduceReport();
  EXPECT_EQ(CountWrong(report), 3);
  report.sizes[1].rows[0].wrong = 4;
  EXPECT_EQ(CountWrong(report), 7);
}

}  // namespace
}  // namespace lockstep
