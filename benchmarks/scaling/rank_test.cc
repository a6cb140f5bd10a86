// Tests ranks that train as threads, on a few made-up images; and the times of
// steps on a GPU, on made-up times.
#include "benchmarks/scaling/rank.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/turn.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/data_flags.h"
#include "models/train/data_parallel.h"
#include "models/train/device.h"
#include "models/train/rank_steps.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
      results[rank] = RunRank(*(*group)[rank], rank, data, {}, spec);
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
    const auto result = RunRank(*(*group)[0], 0, data, flags, spec);
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

// Tests of the times of steps on a GPU.

// Steps of made-up times: step i of the run computes for i + 1 ms, waits for
// sums for 10 ms and for data for 100 ms.
class FakeGpuSteps : public RankSteps {
 public:
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::StatusOr<StepResult> Step(const Batch&, int64_t, float,
                                  bool with_metrics) override {
    asked.push_back(with_metrics);
    times.push_back({.compute = absl::Milliseconds(asked.size()),
                     .exposed_communication = absl::Milliseconds(10),
                     .data_wait = absl::Milliseconds(100)});
    StepResult result;
    if (!with_metrics) return result;
    result.metrics = {.loss_sum = 8, .correct = 1, .samples = 4};
    result.gpu_steps = times;
    return result;
  }
  absl::StatusOr<Metrics> Evaluate(const Batch&) override { return Metrics(); }
  absl::Status BroadcastBuffers() override { return absl::OkStatus(); }
  absl::Status Read(Parameters&, Buffers&) override { return absl::OkStatus(); }
  absl::Status Write(const Parameters&, const Buffers&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<OptimizerState> ReadOptimizer() override {
    return OptimizerState();
  }
  absl::Status WriteOptimizer(const OptimizerState&) override {
    return absl::OkStatus();
  }
  const std::string& warning() const override { return warning_; }

  std::vector<bool> asked;  // By step: for metrics.
  std::vector<StepTimes> times;

 private:
  const std::string warning_;
};

// Takes the steps of a run whose every third batch is small, until it is done.
absl::Status TakeSteps(GpuTimedSteps& steps) {
  for (int i = 0; !steps.done(); ++i) {
    // The trainer wants metrics of each step, which the run does without.
    const absl::Status status =
        steps.Step({}, i % 3 == 2 ? 8 : 16, 0.1f, /*with_metrics=*/true)
            .status();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(GpuTimedStepsTest, TimesTheFullStepsAfterTheWarmUpAndAsksOnce) {
  FakeGpuSteps fake;
  GpuTimedSteps steps(fake, MakeSpec(1));
  ASSERT_THAT(TakeSteps(steps), IsOk());
  // Small batches are steps 2 and 5; the warm-up is step 0.
  EXPECT_THAT(fake.asked,
              ElementsAre(false, false, false, false, false, false, true));
  const auto timed = steps.Timed();
  ASSERT_THAT(timed, IsOk());
  std::vector<double> computes;
  for (const RankStep& step : *timed) {
    computes.push_back(step.parts.compute);
    EXPECT_DOUBLE_EQ(step.parts.exposed_communication, 0.010);
    EXPECT_DOUBLE_EQ(step.parts.data_wait, 0.100);
    EXPECT_DOUBLE_EQ(step.seconds, step.parts.Sum());
    EXPECT_EQ(step.cpu_seconds, step.seconds);
  }
  EXPECT_THAT(computes, ElementsAre(0.002, 0.004, 0.005, 0.007));
  EXPECT_EQ(steps.metrics().loss_sum, 8);
}

TEST(GpuTimedStepsTest, RefusesTimesThatAreNotOfEachStep) {
  FakeGpuSteps fake;
  GpuTimedSteps steps(fake, MakeSpec(1));
  ASSERT_THAT(steps.Step({}, 16, 0.1f, false), IsOk());
  fake.times.clear();
  ASSERT_THAT(TakeSteps(steps), IsOk());
  EXPECT_THAT(steps.Timed(), StatusIs(absl::StatusCode::kInternal,
                                      HasSubstr("timed 5 of 6 steps")));
}

}  // namespace
}  // namespace lockstep::benchmarks
