// Tests the combination of ranks into rounds, on made-up numbers.
#include "benchmarks/scaling/turn.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/device.h"

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
  return {.configuration = {.world_size = 2, .global_batch = 100}, .steps = 2};
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

TEST(CombineRanksTest, NamesWinogradIfOneRankHasIt) {
  std::vector<RankResult> results = GoodResults();
  const auto convolution = [&](const char* first, const char* second) {
    results[0].convolution = first;
    results[1].convolution = second;
    const auto sample = CombineRanks(TwoRanksTwoSteps(), results);
    EXPECT_THAT(sample, IsOk());
    return sample.ok() ? sample->convolution : "failed";
  };
  EXPECT_EQ(convolution("direct", "direct"), "direct");
  EXPECT_EQ(convolution("winograd", "direct"), "winograd");
  EXPECT_EQ(convolution("direct", "winograd"), "winograd");
  EXPECT_EQ(convolution("", ""), "");
}

TEST(CombineRanksTest, NamesEachGpuOnceAndSaysWhetherRanksShareOne) {
  RunSpec spec = TwoRanksTwoSteps();
  spec.configuration.device = ComputeDevice::kCuda;
  std::vector<RankResult> results = GoodResults();
  results[0].gpu = "A";
  results[1].gpu = "B";
  auto sample = CombineRanks(spec, results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_THAT(sample->gpus, ElementsAre("A", "B"));
  EXPECT_FALSE(sample->shared_gpu);
  EXPECT_EQ(sample->hosts_sum, "");
  results[0].gpu = "B";
  results[1].shares_gpu = 1;
  results[1].hosts_sum = "why";
  sample = CombineRanks(spec, results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_THAT(sample->gpus, ElementsAre("B"));
  EXPECT_TRUE(sample->shared_gpu);
  EXPECT_EQ(sample->hosts_sum, "why");
}

TEST(CombineRanksTest, TakesTheMostMemoryAndTheMeanEnergy) {
  std::vector<RankResult> results = GoodResults();
  results[0].gpu_memory_bytes = 3000;
  results[1].gpu_memory_bytes = 2000;
  results[0].gpu_joules = 300;
  results[1].gpu_joules = 500;
  results[0].gpu_seconds = results[1].gpu_seconds = 2;
  auto sample = CombineRanks(TwoRanksTwoSteps(), results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->gpu_memory_bytes, 3000);
  EXPECT_EQ(sample->gpu_joules, 400);
  EXPECT_EQ(sample->gpu_seconds, 2);

  // A mean needs every rank's energy.
  results[1].gpu_joules = results[1].gpu_seconds = 0;
  sample = CombineRanks(TwoRanksTwoSteps(), results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->gpu_joules, 0);
  EXPECT_EQ(sample->gpu_seconds, 0);
}

TEST(CombineRanksTest, RefusesAnotherDevice) {
  RunSpec spec = TwoRanksTwoSteps();
  std::vector<RankResult> results = GoodResults();
  results[1].gpu = "A";
  EXPECT_THAT(CombineRanks(spec, results),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank 1 computed on a GPU")));
  spec.configuration.device = ComputeDevice::kCuda;
  EXPECT_THAT(CombineRanks(spec, results),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank 0 computed on a CPU")));
}

TEST(CombineRanksTest, CountsNoWaitingForARankThatSpinsForItsPeers) {
  std::vector<RankResult> results = GoodResults();
  for (RankResult& result : results) {
    for (RankStep& step : result.steps) step.cpu_seconds = step.seconds;
  }
  std::swap(results[0], results[1]);  // The order does not matter.
  const auto sample = CombineRanks(TwoRanksTwoSteps(), results);
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->kept_waiting, 0);
}

TEST(CombineRanksTest, RefusesWhatIsNotTheRunThatWasAskedFor) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Results = std::vector<RankResult>;
  const std::pair<const char*, std::function<void(Results&)>> cases[] = {
      // Two processes that did not join one group: each is rank 0 of 1.
      {"rank 0 was one of 1",
       [](Results& all) {
         for (RankResult& one : all) one.world_size = 1, one.rank = 0;
       }},
      {"rank 0 reported 2 times", [](Results& all) { all[1].rank = 0; }},
      {"rank 1 reported 0 times", [](Results& all) { all.pop_back(); }},
      {"rank 0 reported 0 times", [](Results& all) { all.clear(); }},
      {"it has a rank 2", [](Results& all) { all[0].rank = 2; }},
      {"rank 1 ended with other parameters",
       [](Results& all) { all[1].same_parameters = false; }},
      {"the loss became", [](Results& all) { all[1].loss = kNan; }},
      {"the loss became", [](Results& all) { all[1].loss = kInfinity; }},
      {"rank 1 timed 1 steps, not 2",
       [](Results& all) { all[1].steps.pop_back(); }}};
  for (const auto& [cause, change] : cases) {
    Results results = GoodResults();
    change(results);
    EXPECT_THAT(CombineRanks(TwoRanksTwoSteps(), results),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(cause)));
  }
}

TEST(CodecTest, CarriesResultsAndSpecsExactly) {
  RankResult result = GoodResults()[1];
  result.loss = 0.1 + 0.2;
  result.convolution = "winograd";
  result.steps[0].seconds = 1.0 / 3;
  result.gpu = "Example GPU";
  result.shares_gpu = 1;
  result.hosts_sum = "why";
  result.gpu_memory_bytes = int64_t{1} << 40;
  result.gpu_joules = 0.25;
  result.gpu_seconds = 0.125;
  EXPECT_THAT(Decode<RankResult>(Encode(result)), IsOkAndHolds(result));
  const RunSpec spec = {.configuration = {.world_size = 3,
                                          .global_batch = 12,
                                          .ranks = RankKind::kThreads,
                                          .type = DataType::kBFloat16,
                                          .device = ComputeDevice::kCuda},
                        .model = "resnet18_d2l",
                        .learning_rate = 0.1,
                        .steps = 4,
                        .warmup_steps = 1};
  EXPECT_THAT(Decode<RunSpec>(Encode(spec)), IsOkAndHolds(spec));
}

}  // namespace
}  // namespace lockstep::benchmarks
