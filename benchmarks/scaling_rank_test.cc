// Ranks that train for real, as threads, on a few made-up images.
#include "benchmarks/scaling_rank.h"

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/scaling_plan.h"
#include "benchmarks/scaling_round.h"
#include "collectives/communicator.h"
#include "collectives/host/thread_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

Dataset MakeImages(int64_t count) {
  Dataset data = {.size = count,
                  .channels = 1,
                  .height = 28,
                  .width = 28,
                  .num_classes = 10,
                  .images = {},
                  .labels = {}};
  for (int64_t i = 0; i < count * data.image_size(); ++i) {
    data.images.push_back(static_cast<uint8_t>(i * 7919 % 251));
  }
  for (int64_t i = 0; i < count; ++i) {
    data.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return data;
}

RunSpec MakeSpec(int world_size) {
  return {.configuration = {.world_size = world_size, .global_batch = 16},
          .ranks = RankKind::kThreads,
          .steps = 4,
          .warmup_steps = 1};
}

// The results by rank.
std::vector<absl::StatusOr<RankResult>> RunAll(const Dataset& data,
                                               const RunSpec& spec) {
  const int world_size = spec.configuration.world_size;
  auto group = CreateThreadGroup(world_size);
  EXPECT_THAT(group, IsOk());
  std::vector<absl::StatusOr<RankResult>> results(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = RunRank(*(*group)[rank], data, spec); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(RunRankTest, TimesTheStepsAndChecksTheOutcome) {
  // Two full batches and a smaller one in each epoch: three epochs.
  const Dataset data = MakeImages(40);
  for (const int world_size : {1, 2, 3}) {
    const RunSpec spec = MakeSpec(world_size);
    std::vector<RankResult> ranks;
    for (const auto& result : RunAll(data, spec)) {
      ASSERT_THAT(result, IsOk());
      ranks.push_back(*result);
      EXPECT_EQ(result->rank, static_cast<int>(ranks.size()) - 1);
      EXPECT_EQ(result->world_size, world_size);
      EXPECT_TRUE(result->same_parameters);
      ASSERT_EQ(result->steps.size(), 4u);
      for (const RankStep& step : result->steps) {
        EXPECT_GT(step.parts.compute, 0);
        EXPECT_GE(step.parts.exposed_communication, 0);
        EXPECT_GT(step.parts.data_wait, 0);
        EXPECT_GT(step.cpu_seconds, 0);
        EXPECT_LE(step.cpu_seconds, step.seconds + 1e-3);
        // The parts are inside the step; the two clocks tick a little apart.
        EXPECT_LE(step.parts.Sum(), step.seconds + 1e-5);
      }
    }
    EXPECT_THAT(CombineRanks(spec, ranks), IsOk());
  }
}

TEST(RunRankTest, TrainsAsOneRankWould) {
  const Dataset data = MakeImages(40);
  const auto one = RunAll(data, MakeSpec(1))[0];
  ASSERT_THAT(one, IsOk());
  // Close to ln 10, the loss of weights that are almost zero, but not it.
  EXPECT_NEAR(one->loss, std::log(10.0), 0.1);
  EXPECT_NE(one->loss, std::log(10.0));
  for (const int world_size : {2, 3}) {
    for (const auto& result : RunAll(data, MakeSpec(world_size))) {
      ASSERT_THAT(result, IsOk());
      // Five steps, each rounding sums of 16 losses: well inside 1e-5.
      EXPECT_NEAR(result->loss, one->loss, 1e-5) << world_size;
    }
  }
}

TEST(RunRankTest, RejectsADataSetSmallerThanAStep) {
  const Dataset data = MakeImages(15);
  for (const auto& result : RunAll(data, MakeSpec(2))) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("more than the data set's 15")));
  }
}

}  // namespace
}  // namespace lockstep
