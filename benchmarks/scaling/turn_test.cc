// Tests the combination of ranks into rounds, on made-up numbers, and ranks
// that train as threads.
#include "benchmarks/scaling/turn.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/data/dataset.h"
#include "models/train/data_flags.h"

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
  EXPECT_THAT(Decode<RankResult>(Encode(result)), IsOkAndHolds(result));
  const RunSpec spec = {.configuration = {.world_size = 3,
                                          .global_batch = 12,
                                          .ranks = RankKind::kThreads,
                                          .type = DataType::kBFloat16},
                        .model = "resnet18_d2l",
                        .learning_rate = 0.1,
                        .steps = 4,
                        .warmup_steps = 1};
  EXPECT_THAT(Decode<RunSpec>(Encode(spec)), IsOkAndHolds(spec));
}

// Tests of ranks that train as threads, on a few made-up images.

MemoryDataset MakeImages(int64_t count) {
  std::vector<uint8_t> images, labels;
  for (int64_t i = 0; i < count * 28 * 28; ++i) {
    images.push_back(static_cast<uint8_t>(i * 7919 % 251));
  }
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return MemoryDataset({28, 28, 1}, 10, std::move(images), std::move(labels));
}

RunSpec MakeSpec(int world_size) {
  return {.configuration = {.world_size = world_size, .global_batch = 16},
          .steps = 4,
          .warmup_steps = 1};
}

// Runs `spec` on ranks that are threads. Returns the results by rank.
std::vector<absl::StatusOr<RankResult>> RunOnThreads(const MemoryDataset& data,
                                                     const RunSpec& spec) {
  const int world_size = spec.configuration.world_size;
  auto group = CreateThreadGroup(world_size);
  EXPECT_THAT(group, IsOk());
  std::vector<absl::StatusOr<RankResult>> results(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = RunRank(*(*group)[rank], data, {}, spec);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(RunRankTest, TimesTheStepsAndTrainsAsOneRankWould) {
  // Each epoch has two full batches and a smaller one, so the run has three
  // epochs.
  const MemoryDataset data = MakeImages(40);
  double alone = 0;  // The loss of one rank.
  for (const int world_size : {1, 2, 3}) {
    const RunSpec spec = MakeSpec(world_size);
    std::vector<RankResult> ranks;
    for (const auto& result : RunOnThreads(data, spec)) {
      ASSERT_THAT(result, IsOk());
      if (world_size == 1) alone = result->loss;
      // The losses of world sizes differ by the rounding of sums of 16 losses
      // in five steps, which is far below 1e-5.
      EXPECT_NEAR(result->loss, alone, 1e-5) << world_size;
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
        // The parts are within the step, but two clocks measure them.
        EXPECT_LE(step.parts.Sum(), step.seconds + 1e-5);
      }
    }
    EXPECT_THAT(CombineRanks(spec, ranks), IsOk());
  }
  // Weights that are almost zero have a loss of almost, but not exactly, ln 10.
  EXPECT_NEAR(alone, std::log(10.0), 0.1);
  EXPECT_NE(alone, std::log(10.0));
}

// Each setting changes the loss after five steps, which shows that the setting
// reaches the rank.
TEST(RunRankTest, TrainsTheModelInTheTypeAtTheRateOnTheImagesThatAreAsked) {
  const MemoryDataset data = MakeImages(40);
  const auto loss = [&](const DataFlags& flags, const RunSpec& spec) {
    auto group = CreateThreadGroup(1);
    const auto result = RunRank(*(*group)[0], data, flags, spec);
    EXPECT_THAT(result, IsOk());
    return result.ok() ? result->loss : 0;
  };
  const double plain = loss({}, MakeSpec(1));
  RunSpec model = MakeSpec(1), type = MakeSpec(1), rate = MakeSpec(1);
  model.model = "lenet_bn";
  type.configuration.type = DataType::kBFloat16;
  rate.learning_rate = 1;
  DataFlags images;
  images.transform.height = images.transform.width = 32;
  EXPECT_NE(loss({}, model), plain);
  if (CheckActivationType(DataType::kBFloat16).ok()) {
    EXPECT_NE(loss({}, type), plain);
  }
  EXPECT_NE(loss({}, rate), plain);
  EXPECT_NE(loss(images, MakeSpec(1)), plain);
  EXPECT_EQ(loss({}, MakeSpec(1)), plain);
}

// Each rank of kApart trains on eight images, to the same bits as one rank
// alone. Sums of two ranks' gradients would round differently.
TEST(RunRankTest, LeavesRanksApartAlone) {
  const MemoryDataset data = MakeImages(40);
  RunSpec spec = MakeSpec(1);
  spec.configuration.global_batch = 8;
  const auto alone = RunOnThreads(data, spec);
  ASSERT_THAT(alone[0], IsOk());
  spec = MakeSpec(2);
  spec.configuration.ranks = RankKind::kApart;
  for (const auto& result : RunOnThreads(data, spec)) {
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->loss, alone[0]->loss);
    EXPECT_EQ(result->world_size, 2);
    EXPECT_TRUE(result->same_parameters);
    EXPECT_EQ(result->steps.size(), 4u);
  }
}

// A ResNet of 32 channels is faster with Winograd in float32, if oneDNN
// supports Winograd. LeNet's convolutions, of 5x5, are not.
TEST(RunRankTest, SaysHowItConvolved) {
  const MemoryDataset data = MakeImages(40);
  const auto convolution = [&](const std::string& model, DataType type) {
    RunSpec spec = MakeSpec(2);
    spec.model = model;
    spec.configuration.type = type;
    spec.steps = 1;
    const auto results = RunOnThreads(data, spec);
    EXPECT_THAT(results[1], IsOk());
    return results[1].ok() ? results[1]->convolution : "failed";
  };
  const std::string resnet = "resnet18_d2l:width=32";
  EXPECT_EQ(convolution("lenet", DataType::kFloat32), "direct");
  if (CheckActivationType(DataType::kBFloat16).ok()) {
    EXPECT_EQ(convolution(resnet, DataType::kBFloat16), "direct");
  }
  EXPECT_EQ(convolution(resnet, DataType::kFloat32),
            CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok()
                ? "winograd"
                : "direct");
}

TEST(RunRankTest, RejectsADataSetSmallerThanAStep) {
  const MemoryDataset data = MakeImages(15);
  for (const auto& result : RunOnThreads(data, MakeSpec(2))) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("more than the data set's 15")));
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
