// Ranks to rounds, on made-up numbers, and ranks that train.
#include "benchmarks/scaling/run.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/codec.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/round.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankStep MakeStep(double seconds, double compute, double communication,
                  double data) {
  return {.seconds = seconds,
          .parts = {.compute = compute,
                    .exposed_communication = communication,
                    .data_wait = data},
          .cpu_seconds = seconds / 2};
}

RunSpec TwoRanksTwoSteps() {
  RunSpec spec;
  spec.configuration = {.world_size = 2, .global_batch = 100};
  spec.steps = 2;
  return spec;
}

std::vector<RankResult> GoodResults() {
  return {{.rank = 0,
           .world_size = 2,
           .same_parameters = true,
           .loss = 0.5,
           .steps = {MakeStep(1, 0.5, 0.25, 0.125), MakeStep(2, 1, 0.5, 0.25)}},
          {.rank = 1,
           .world_size = 2,
           .same_parameters = true,
           .loss = 0.5,
           .steps = {MakeStep(1.5, 1.5, 0, 0), MakeStep(2.5, 1, 1, 0.5)}}};
}

TEST(CombineRanksTest, TakesTheSlowestRankAndTheMeanParts) {
  const auto sample = CombineRanks(TwoRanksTwoSteps(), GoodResults());
  ASSERT_THAT(sample, IsOk());
  // Rank 1 is the slower: 4 seconds for 2 steps of 100 images.
  EXPECT_EQ(sample->images_per_second, 50);
  EXPECT_THAT(sample->step_seconds, ElementsAre(1.5, 2.5));
  EXPECT_EQ(sample->parts.compute, 1);                     // 4 / 4.
  EXPECT_EQ(sample->parts.exposed_communication, 0.4375);  // 1.75 / 4.
  EXPECT_EQ(sample->parts.data_wait, 0.21875);             // 0.875 / 4.
  EXPECT_THAT(sample->parts.Sum(), DoubleEq(2));
  // Step 0: 1.5 against a mean of 1; step 1: none.
  EXPECT_EQ(sample->imbalance, 0.25);
  // Rank 0 worked 2.25 seconds and ran 1.5; rank 1 worked 3 and ran 2.
  EXPECT_THAT(sample->kept_waiting, DoubleEq(1.0 / 3));
  EXPECT_EQ(sample->loss, 0.5);
}

TEST(CombineRanksTest, CountsNoWaitingForARankThatSpinsForItsPeers) {
  std::vector<RankResult> results = GoodResults();
  for (RankResult& result : results) {
    for (RankStep& step : result.steps) step.cpu_seconds = step.seconds;
  }
  const auto sample = CombineRanks(TwoRanksTwoSteps(), results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->kept_waiting, 0);
}

TEST(CombineRanksTest, AcceptsRanksInAnyOrder) {
  std::vector<RankResult> results = GoodResults();
  std::swap(results[0], results[1]);
  EXPECT_THAT(CombineRanks(TwoRanksTwoSteps(), results), IsOk());
}

void ExpectRefused(const std::vector<RankResult>& results,
                   const std::string& cause) {
  EXPECT_THAT(CombineRanks(TwoRanksTwoSteps(), results),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(cause)));
}

TEST(CombineRanksTest, RefusesAnotherWorldSize) {
  std::vector<RankResult> results = GoodResults();
  // Two copies that never met, each of them rank 0 of 1.
  for (RankResult& result : results) result.world_size = 1, result.rank = 0;
  ExpectRefused(results, "rank 0 was one of 1");
}

TEST(CombineRanksTest, RefusesMissingAndRepeatedRanks) {
  std::vector<RankResult> results = GoodResults();
  results[1].rank = 0;
  ExpectRefused(results, "rank 0 reported 2 times");
  results.resize(1);
  ExpectRefused(results, "rank 1 reported 0 times");
  results[0].rank = 2;
  ExpectRefused(results, "it has a rank 2");
  ExpectRefused({}, "rank 0 reported 0 times");
}

TEST(CombineRanksTest, RefusesParametersThatDiffer) {
  std::vector<RankResult> results = GoodResults();
  results[1].same_parameters = false;
  ExpectRefused(results, "rank 1 ended with other parameters");
}

TEST(CombineRanksTest, RefusesALossThatIsNotFinite) {
  for (const double loss : {std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity()}) {
    std::vector<RankResult> results = GoodResults();
    results[1].loss = loss;
    ExpectRefused(results, "the loss became");
  }
}

TEST(CombineRanksTest, RefusesAnotherNumberOfSteps) {
  std::vector<RankResult> results = GoodResults();
  results[1].steps.pop_back();
  ExpectRefused(results, "rank 1 timed 1 steps, not 2");
}

TEST(RankResultTest, TravelsExactly) {
  RankResult result = GoodResults()[1];
  result.loss = 0.1 + 0.2;
  result.steps[0].seconds = 1.0 / 3;
  const auto back = Decode<RankResult>(Encode(result));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->rank, 1);
  EXPECT_EQ(back->world_size, 2);
  EXPECT_TRUE(back->same_parameters);
  EXPECT_EQ(back->loss, result.loss);
  ASSERT_EQ(back->steps.size(), 2u);
  EXPECT_EQ(back->steps[0].seconds, result.steps[0].seconds);
  EXPECT_EQ(back->steps[1].parts.compute, 1);
  EXPECT_EQ(back->steps[1].parts.exposed_communication, 1);
  EXPECT_EQ(back->steps[1].parts.data_wait, 0.5);
  EXPECT_EQ(back->steps[1].cpu_seconds, 1.25);
}

TEST(RunSpecTest, Travels) {
  const RunSpec spec = {.configuration = {.world_size = 3, .global_batch = 12},
                        .ranks = RankKind::kThreads,
                        .model = "lenet",
                        .dataset = "images",
                        .data_dir = "/data",
                        .steps = 4,
                        .warmup_steps = 1};
  const auto back = Decode<RunSpec>(Encode(spec));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->configuration, spec.configuration);
  EXPECT_EQ(back->ranks, RankKind::kThreads);
  EXPECT_EQ(back->model, "lenet");
  EXPECT_EQ(back->dataset, "images");
  EXPECT_EQ(back->data_dir, "/data");
  EXPECT_EQ(back->steps, 4);
  EXPECT_EQ(back->warmup_steps, 1);
}

// Ranks that train for real, as threads, on a few made-up images.

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
}  // namespace lockstep::benchmarks
