// Tests the plan and the order of runs, and the combination of ranks into
// rounds, on made-up numbers. Also tests ranks that train, and the whole
// command on a small data set.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/scaling/report.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launcher.h"
#include "collectives/rendezvous/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/data/dataset.h"
#include "models/data/idx_files.h"
#include "models/data/image.h"
#include "models/train/data_flags.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

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
  EXPECT_NE(loss({}, type), plain);
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
  EXPECT_EQ(convolution(resnet, DataType::kBFloat16), "direct");
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

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(DefaultWorldSizesTest, ArePowersOfTwoAndTheCores) {
  EXPECT_THAT(DefaultWorldSizes(1), ElementsAre(1));
  EXPECT_THAT(DefaultWorldSizes(2), ElementsAre(1, 2));
  EXPECT_THAT(DefaultWorldSizes(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(DefaultWorldSizes(4), ElementsAre(1, 2, 4));
  EXPECT_THAT(DefaultWorldSizes(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(DefaultWorldSizes(64), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_EQ(DefaultWorldSizes(96), DefaultWorldSizes(64));
}

TEST(ParseWorldSizesTest, SortsDropsRepetitionsAndNamesWhatIsWrong) {
  EXPECT_THAT(ParseWorldSizes("4,1,2,4"), IsOkAndHolds(ElementsAre(1, 2, 4)));
  EXPECT_THAT(ParseWorldSizes("64"), IsOkAndHolds(ElementsAre(64)));
  for (const char* text :
       {"", "0", "-1", "1,,2", "1,two", "65", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(ParseWorldSizes(text),
                StatusIs(kInvalid, HasSubstr("--world_sizes: '")))
        << text;
  }
}

TEST(ParseModesTest, AcceptsEachAndBothByName) {
  EXPECT_THAT(ParseModes("strong"),
              IsOkAndHolds(ElementsAre(ScalingMode::kStrong)));
  EXPECT_THAT(
      ParseModes("weak,strong,weak"),
      IsOkAndHolds(ElementsAre(ScalingMode::kStrong, ScalingMode::kWeak)));
  for (const char* text : {"", "Strong", "strong;weak"}) {
    EXPECT_THAT(ParseModes(text), StatusIs(kInvalid, HasSubstr("--mode: '")));
  }
  for (const ScalingMode mode : {ScalingMode::kStrong, ScalingMode::kWeak}) {
    EXPECT_THAT(ParseModes(Name(mode)), IsOkAndHolds(ElementsAre(mode)));
  }
  for (const RankKind kind :
       {RankKind::kProcesses, RankKind::kThreads, RankKind::kMpi}) {
    EXPECT_THAT(ParseBackends(Name(kind)), IsOkAndHolds(ElementsAre(kind)));
  }
}

TEST(ParsePeersTest, AcceptsNoneAndPyTorch) {
  EXPECT_THAT(ParsePeers(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParsePeers("torch"), IsOkAndHolds(ElementsAre(RankKind::kDdp)));
  EXPECT_THAT(ParsePeers("ddp"), StatusIs(kInvalid, HasSubstr("--peers: '")));
}

TEST(ValidateTest, RejectsFewerImagesThanRanksInStrongScalingOnly) {
  EXPECT_THAT(Validate({.world_sizes = {1, 2, 64}}), IsOk());
  ScalingSettings settings = {.world_sizes = {1, 8}, .batch_size = 7};
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, AllOf(HasSubstr("--batch_size: 7"),
                                       HasSubstr("8 ranks"))));
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(Validate(settings), IsOk());
}

TEST(DistinctConfigurationsTest, RunsWhatTheModesShareOnce) {
  ScalingSettings settings = {.world_sizes = {1, 2}, .batch_size = 10};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{1, 10}, Configuration{2, 10},
                          Configuration{2, 20}));
  settings.world_sizes = {2, 3};
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{2, 20}, Configuration{3, 30}));
}

TEST(DistinctConfigurationsTest, RunsOneRankForAllBackendsAndEachType) {
  const ScalingSettings settings = {
      .modes = {ScalingMode::kStrong},
      .world_sizes = {1, 2},
      .backends = {RankKind::kThreads, RankKind::kProcesses},
      .types = {DataType::kFloat32, DataType::kBFloat16},
      .batch_size = 10};
  const auto of = [](int world_size, RankKind ranks, DataType type) {
    return Configuration{world_size, 10, ranks, type};
  };
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(of(1, RankKind::kThreads, DataType::kFloat32),
                          of(1, RankKind::kThreads, DataType::kBFloat16),
                          of(2, RankKind::kThreads, DataType::kFloat32),
                          of(2, RankKind::kThreads, DataType::kBFloat16),
                          of(2, RankKind::kProcesses, DataType::kFloat32),
                          of(2, RankKind::kProcesses, DataType::kBFloat16)));
}

// PyTorch's run of one rank is a configuration of its own.
TEST(DistinctConfigurationsTest, RunsOneRankOfDdpToo) {
  const ScalingSettings settings = {
      .modes = {ScalingMode::kWeak},
      .world_sizes = {1, 2},
      .backends = {RankKind::kDdp, RankKind::kProcesses, RankKind::kApart},
      .batch_size = 10};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{1, 10, RankKind::kDdp},
                          Configuration{1, 10, RankKind::kProcesses},
                          Configuration{2, 20, RankKind::kDdp},
                          Configuration{2, 20, RankKind::kProcesses},
                          Configuration{2, 20, RankKind::kApart}));
}

TEST(CommandOfTest, StartsTheRanksOfEveryBackend) {
  const auto text = [](RankKind ranks) {
    TeamCommand command =
        CommandOf({.flags = {"--lr=1"}, .mpi_folder = "/m", .cores = 2},
                  {.configuration = {.world_size = 2, .ranks = ranks}},
                  "scaling", "name");
    std::erase(command.argv, "--allow-run-as-root");  // If we are root.
    return absl::StrCat(absl::StrJoin(command.argv, " "), "; ", command.nproc,
                        " ", command.world_size);
  };
  EXPECT_EQ(text(RankKind::kProcesses),
            "scaling --lr=1 --worker=name --backend=processes --world_sizes=2; "
            "2 2");
  EXPECT_THAT(text(RankKind::kApart), EndsWith("=apart --world_sizes=2; 2 2"));
  EXPECT_EQ(text(RankKind::kThreads),
            "scaling --lr=1 --worker=name --backend=threads --world_sizes=2; "
            "1 2");
  EXPECT_EQ(text(RankKind::kMpi),
            "mpirun --oversubscribe -np 2 --bind-to none scaling --lr=1 "
            "--worker=name --backend=mpi --world_sizes=2; 1 2");
}

TEST(RoundsWithinTest, DropsRoundsThatDoNotFitAndDividesTheTimeThatIsLeft) {
  const RunCost round = {.fixed_seconds = 3, .step_seconds = 0.4};
  // A round of the fewest steps, 10, takes 7 seconds.
  EXPECT_EQ(RoundsWithin(35.01, 5, round), 5);
  EXPECT_EQ(RoundsWithin(34.99, 5, round), 4);
  EXPECT_EQ(RoundsWithin(0, 5, round), 1);
  // 5 rounds of 3 + 0.4 n seconds: 55 seconds allow n = 20.
  EXPECT_EQ(StepsWithin(55.01, 5, round), 20);
  EXPECT_EQ(StepsWithin(1, 5, round), 10);
  EXPECT_EQ(StepsWithin(1e6, 5, round), 60);
}

// Tests of the order of runs and the use of their samples, with made-up runs.

// A runner whose runs take no time, and the log of its runs.
class FakeRuns {
 public:
  ScalingRunner runner() {
    return [this](const RunSpec& spec) { return Run(spec); };
  }
  ScalingProgress progress() {
    return [this](absl::string_view text) { absl::StrAppend(&shown, text); };
  }

  // "world size x global batch x steps" of each run.
  std::vector<std::string> runs;
  std::vector<double> learning_rates;
  std::string shown;
  int fail_at = -1;  // The run that fails.
  absl::Status failure = absl::AbortedError("rank 1 died");

 private:
  absl::StatusOr<RoundSample> Run(const RunSpec& spec) {
    const Configuration& c = spec.configuration;
    if (static_cast<int>(runs.size()) == fail_at) {
      return failure;
    }
    runs.push_back(
        absl::StrCat(c.world_size, "x", c.global_batch, "x", spec.steps));
    learning_rates.push_back(spec.learning_rate);
    return RoundSample{
        .images_per_second = static_cast<double>(4 * c.global_batch),
        .parts = {.compute = 0.25},
        .step_seconds = std::vector<double>(spec.steps, 0.25)};
  }
};

ScalingSettings SmallSettings() {
  return {.world_sizes = {1, 2}, .batch_size = 8, .rounds = 2, .steps = 3};
}

TEST(MeasureScalingTest, InterleavesConfigurationsAndGivesEachModeItsOwn) {
  FakeRuns fake;
  const auto report =
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(fake.runs, ElementsAre("1x8x3", "2x8x3", "2x16x3",  //
                                     "2x8x3", "1x8x3", "2x16x3"));
  EXPECT_THAT(fake.shown,
              HasSubstr("round 2 of 2: 2 ranks, 16 images a step: 64"));
  ASSERT_EQ(report->modes.size(), 2u);
  const ModeReport &strong = report->modes[0], &weak = report->modes[1];
  EXPECT_EQ(strong.mode, ScalingMode::kStrong);
  ASSERT_EQ(strong.configurations.size(), 2u);
  EXPECT_EQ(strong.configurations[1].global_batch(), 8);
  EXPECT_EQ(strong.configurations[1].efficiency, 0.5);
  EXPECT_EQ(weak.mode, ScalingMode::kWeak);
  ASSERT_EQ(weak.configurations.size(), 2u);
  EXPECT_EQ(weak.configurations[0].global_batch(), 8);
  EXPECT_EQ(weak.configurations[1].global_batch(), 16);
  EXPECT_EQ(weak.configurations[1].efficiency, 1);
  EXPECT_EQ(weak.configurations[1].measured.rounds.size(), 2u);
  EXPECT_EQ(weak.configurations[1].step_count, 6);
  EXPECT_THAT(strong.limits, HasSubstr("50%"));
}

// The chapter of d2l trains ResNet-18 with 256 images at 0.1 on one device and
// with 512 at 0.2 on two. It trains LeNet with 256 images at 0.2 on both.
TEST(MeasureScalingTest, ScalesTheLearningRateWithTheGlobalBatch) {
  ScalingSettings settings = SmallSettings();
  settings.batch_size = 256;
  settings.learning_rate = 0.1;
  settings.rounds = 1;
  settings.modes = {ScalingMode::kWeak};
  FakeRuns weak, strong;
  ASSERT_THAT(MeasureScaling(settings, 2, weak.runner(), weak.progress()),
              IsOk());
  EXPECT_THAT(weak.runs, ElementsAre("1x256x3", "2x512x3"));
  EXPECT_THAT(weak.learning_rates, ElementsAre(0.1, 0.2));
  settings.modes = {ScalingMode::kStrong};
  settings.learning_rate = 0.2;
  ASSERT_THAT(MeasureScaling(settings, 2, strong.runner(), strong.progress()),
              IsOk());
  EXPECT_THAT(strong.runs, ElementsAre("1x256x3", "2x256x3"));
  EXPECT_THAT(strong.learning_rates, ElementsAre(0.2, 0.2));
}

TEST(MeasureScalingTest, ProbesToFindOutHowManyStepsFit) {
  FakeRuns fake;
  ScalingSettings settings = SmallSettings();
  settings.steps = 0;
  settings.modes = {ScalingMode::kStrong};
  // Two rounds of two runs of 20 steps of 0.25 s take 20 s.
  settings.seconds = 20.3;
  const auto report =
      MeasureScaling(settings, 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(fake.runs, ElementsAre("1x8x3", "2x8x3", "1x8x20", "2x8x20",
                                     "2x8x20", "1x8x20"));
  EXPECT_EQ(report->settings.steps, 20);
  EXPECT_EQ(report->modes[0].configurations[0].measured.rounds.size(), 2u);
  EXPECT_THAT(fake.shown, HasSubstr("probing (not counted): 1 rank,"));
}

TEST(MeasureScalingTest, StopsAtTheFirstRunThatFails) {
  FakeRuns fake;
  fake.fail_at = 4;
  EXPECT_THAT(
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress()),
      StatusIs(absl::StatusCode::kAborted, "rank 1 died"));
  EXPECT_EQ(fake.runs.size(), 4u);
}

TEST(MeasureScalingTest, KeepsTheWholeRoundsOfARunThatWasInterrupted) {
  FakeRuns fake;
  fake.fail_at = 5;
  fake.failure = absl::CancelledError("interrupted by signal 2 (SIGINT)");
  const auto report =
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->ended,
            "ended after 1 of 2 rounds: interrupted by signal 2 (SIGINT)");
  EXPECT_THAT(report->modes[0].configurations[0].measured.rounds, SizeIs(1));
  fake = FakeRuns();
  fake.fail_at = 2;
  fake.failure = absl::CancelledError("interrupted");
  EXPECT_THAT(
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress()),
      StatusIs(absl::StatusCode::kCancelled, "interrupted"));
}

// Tests of the command.

CommandOutcome RunScaling(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/scaling/scaling ", flags),
                    /*deadline_seconds=*/60);
}

// Creates a folder with the four files of the data set, with 64 training
// images. Returns its path.
std::string MakeDataFolder() {
  const std::string folder = TestPath("-data");
  std::filesystem::create_directories(folder);
  WriteIdxFiles(folder, /*train=*/64, /*test=*/8);
  return folder;
}

int CountEntries(const std::string& folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder),
                    std::filesystem::directory_iterator()));
}

void ExpectWholeReport(const CommandOutcome& outcome, const std::string& folder,
                       const std::string& backend) {
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("round 1 of 1: 2 ranks, 32 images a step: "),
                    HasSubstr("Strong scaling: a step is 16 images in all"),
                    HasSubstr("Weak scaling: a step is 16 images on each"),
                    HasSubstr("At 2 ranks, weak scaling reaches"),
                    HasSubstr("Wrote ")));
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  EXPECT_EQ(json["settings"]["backend"], backend);
  for (const int mode : {0, 1}) {
    const auto& configurations = json["modes"][mode]["configurations"];
    ASSERT_EQ(configurations.size(), 2u);
    for (const int i : {0, 1}) {
      EXPECT_EQ(configurations[i]["world_size"], i + 1);
      EXPECT_EQ(configurations[i]["step_seconds"]["steps"], 3);
      EXPECT_GT(configurations[i]["images_per_second"]["median"], 0);
      EXPECT_EQ(configurations[i]["convolution"], "direct");
      EXPECT_GT(configurations[i]["parts_seconds"]["compute"], 0);
    }
  }
  EXPECT_THAT(
      ReadFile(folder + "/scaling.html"),
      IsOkAndHolds(AllOf(StartsWith("<!DOCTYPE html>"),
                         HasSubstr("<h1>Lockstep scaling report</h1>"))));
  EXPECT_THAT(ReadFile(folder + "/scaling.md"),
              IsOkAndHolds(StartsWith("# Lockstep scaling report\n")));
  EXPECT_EQ(CountEntries(folder), 3);
}

constexpr char kSmall[] =
    " --steps=3 --rounds=1 --warmup_steps=1 --nproc=1,2 --batch_size=16";

// By default the command writes into the folder where `bazel run` was called.
// The command leaves nothing else there and no temporary files.
TEST(ScalingTest, WritesTheReportOfProcessesAndThreads) {
  const std::string data = MakeDataFolder();
  for (const std::string backend : {"processes", "threads"}) {
    const std::string folder = TestPath("-" + backend);
    const std::string temporary = folder + "-tmp";
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(temporary);
    ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", folder.c_str(), 1), 0);
    ASSERT_EQ(setenv("TMPDIR", temporary.c_str(), 1), 0);
    const CommandOutcome outcome = RunScaling(
        absl::StrCat("--data_dir=", data, " --backend=", backend, kSmall));
    ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
    ASSERT_EQ(unsetenv("TMPDIR"), 0);
    ExpectWholeReport(outcome, folder + "/lockstep-scaling", backend);
    EXPECT_EQ(CountEntries(folder), 1);
    EXPECT_EQ(CountEntries(temporary), 0);
  }
}

// At one rank, all backends of a type report the same run; at two ranks, each
// has its own. The test uses another network than LeNet and other images.
TEST(ScalingTest, MeasuresBackendsAndTypesSideBySide) {
  std::vector<std::string> backends = {"threads", "processes"};
  if (access("benchmarks/scaling/scaling_mpi", X_OK) == 0) {
    backends.push_back("mpi");
  }
  const std::string folder = TestPath("");
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--dataset=synthetic --train_samples=64 --image_size=12 --in_channels=3",
      " --model=resnet18_d2l:width=4 --mode=weak --type=float32,bfloat16",
      " --backend=", absl::StrJoin(backends, ","), kSmall,
      " --output_dir=", folder));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("round 1 of 1: 2 ranks, processes, bfloat16, 32 "));
  EXPECT_THAT(outcome.output, HasSubstr("times those of threads ("));
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  EXPECT_EQ(json["settings"]["train_samples"], 64);
  EXPECT_EQ(json["settings"]["height"], 12);
  EXPECT_EQ(json["settings"]["channels"], 3);
  ASSERT_EQ(json["modes"].size(), 2 * backends.size());
  std::vector<nlohmann::json> alone, losses;
  for (size_t i = 0; i < json["modes"].size(); ++i) {
    const auto& mode = json["modes"][i];
    EXPECT_EQ(mode["backend"], backends[i / 2]);
    EXPECT_EQ(mode["type"], i % 2 == 0 ? "float32" : "bfloat16");
    ASSERT_EQ(mode["configurations"].size(), 2u);
    alone.push_back(mode["configurations"][0]);
    losses.push_back(mode["configurations"][1]["rounds"][0]["loss"]);
    EXPECT_EQ(alone[i], alone[i % 2]);
    // The bits of a sum do not depend on the backend.
    EXPECT_EQ(losses[i], losses[i % 2]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(losses[0], losses[1]);
}

// Creates an image folder with a class for each of `classes`. Each class has
// four images of 28 x 28 to train on and one to test with. Returns its path.
std::string MakeImageFolder(const std::vector<std::string>& classes) {
  const std::string folder = TestPath("-images");
  const std::string png =
      *EncodePng({28, 28, 1, std::vector<uint8_t>(28 * 28, 100)});
  for (const std::string& name : classes) {
    for (const std::string& image :
         {"train/" + name + "/0", "train/" + name + "/1",
          "train/" + name + "/2", "train/" + name + "/3",
          "test/" + name + "/0"}) {
      const std::string path = absl::StrCat(folder, "/", image, ".png");
      std::filesystem::create_directories(
          std::filesystem::path(path).parent_path());
      EXPECT_THAT(ReplaceFile(path, png), IsOk());
    }
  }
  return folder;
}

TEST(ScalingTest, SaysHowManyBadImagesAreLeftOut) {
  const std::string data = MakeImageFolder({"a", "b"});
  const std::string flags = absl::StrCat(
      "--dataset=image_folder --skip_bad_images --image_size=28 --in_channels=1"
      " --steps=1 --rounds=1 --warmup_steps=1 --nproc=1 --mode=weak"
      " --batch_size=2 --output_dir=",
      TestPath(""), " --data_dir=", data);
  EXPECT_THAT(RunScaling(flags).output, Not(HasSubstr("left out")));
  for (const auto& [image, text] :
       {std::pair("train/a/1", "1 bad image is left out:"),
        {"test/b/0", "2 bad images are left out, such as"}}) {
    const std::string path = absl::StrCat(data, "/", image, ".png");
    ASSERT_THAT(ReplaceFile(path, "This is no image.\n"), IsOk());
    const CommandOutcome outcome = RunScaling(flags);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
    EXPECT_THAT(ReadFile(TestPath("") + "/scaling.md"),
                IsOkAndHolds(AllOf(HasSubstr(text),
                                   HasSubstr("/train/a/1.png: neither"))));
    EXPECT_EQ(
        ReadJson(TestPath("") + "/scaling.json")["settings"]["train_samples"],
        7);
  }
}

// Creates a program that answers as the Python of a DDP rank does, with
// `answer`. Returns its path.
std::string MakeDdpPython(const std::string& answer) {
  return MakePython(absl::StrCat(
      "echo lockstep: ready 9.9; read line; echo lockstep: loaded; read line;",
      "echo lockstep: ", answer, "; cat"));
}

// The first of PyTorch's steps is the warm-up, which does not count.
TEST(ScalingTest, MeasuresPyTorchAndTheBoundSideBySide) {
  const std::string path = TestPath(".json");
  const std::string flags = absl::StrCat(
      "--data_dir=", MakeDataFolder(),
      " --mode=weak --backend=apart --peers=torch",
      " --output_dir=", TestPath(""), " --json=", path, kSmall, " --python=");
  const CommandOutcome outcome =
      RunScaling(flags + MakeDdpPython("stepped 1 0.5 9 1 1 2"));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("times those of apart ("));
  const nlohmann::json json = ReadJson(path);
  EXPECT_THAT(json["settings"]["pytorch"].get<std::string>(),
              StartsWith("PyTorch 9.9 ("));
  const auto& apart = json["modes"][0]["configurations"][1];
  EXPECT_EQ(apart["world_size"], 2);
  EXPECT_EQ(apart["global_batch"], 32);
  const auto& ddp = json["modes"][1]["configurations"];
  EXPECT_EQ(ddp[0]["images_per_second"]["median"], 12);
  EXPECT_EQ(ddp[1]["images_per_second"]["median"], 24);
  EXPECT_TRUE(ddp[1]["convolution"].is_null());
  const std::pair<const char*, const char*> cases[] = {
      {"stepped 0 0.5 9 1 1 2", "rank 0 ended with other parameters"},
      {"stepped 1 0.5 9 1", "rank 0 timed 1 steps, not 3"},
      {"cannot RuntimeError: no gloo", "ddp: rank 0: RuntimeError: no gloo"}};
  for (const auto& [answer, why] : cases) {
    const CommandOutcome refused = RunScaling(flags + MakeDdpPython(answer));
    EXPECT_EQ(refused.exit_status, 1);
    EXPECT_THAT(refused.output, HasSubstr(why));
  }
}

// The two ranks have different labels, so only sums of gradients make them end
// with the same parameters.
TEST(ScalingTest, TrainsByDistributedDataParallelIfThereIsPyTorch) {
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", MakeDataFolder(),
      " --model=lenet_bn --backend=ddp --peers=torch",
      " --mode=weak --output_dir=", TestPath(""), kSmall, " --nproc=2"));
  if (outcome.exit_status == 2) {
    EXPECT_THAT(outcome.output, StartsWith("scaling: --peers=torch: "));
    return;
  }
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
}

// A launcher starts two ranks, each as if on a host of its own. Rank 1 prints
// nothing. Without a token the ranks do not connect, because any process that
// connects could have them run programs.
TEST(ScalingTest, RunsAsTheRanksOfALauncherOnSeveralHosts) {
  if (!CanProve()) GTEST_SKIP() << "built without OpenSSL";
  const std::string folder = TestPath("");
  std::filesystem::create_directories(folder);
  const std::string flags = absl::StrCat(" --data_dir=", MakeDataFolder(),
                                         " --output_dir=", folder, kSmall);
  const ReservedPort port = ReservePort();
  std::string command = "sh -c '";
  for (const int rank : {1, 0}) {
    absl::StrAppend(&command, "RANK=", rank,
                    " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
                    "GROUP_RANK=",
                    rank, " MASTER_ADDR=127.0.0.1 MASTER_PORT=", port.port,
                    " benchmarks/scaling/scaling", flags,
                    rank == 1 ? " & " : " && wait $!'");
  }
  const CommandOutcome refused = RunCommand(command, /*deadline_seconds=*/100);
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output, HasSubstr("export LOCKSTEP_TOKEN="));
  const CommandOutcome outcome =
      RunCommand("env LOCKSTEP_TOKEN=0123456789 " + command,
                 /*deadline_seconds=*/100);
  EXPECT_THAT(outcome.output, HasSubstr("2 ranks, 32 images a step: "));
  ExpectWholeReport(outcome, folder, "tcp");
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  ASSERT_EQ(json["hosts"].size(), 2u);
  EXPECT_EQ(json["hosts"][1]["ranks"], nlohmann::json({1}));
  EXPECT_THAT(outcome.output, HasSubstr("Hosts: "));
}

TEST(ScalingTest, WarnsOfMoreRanksThanCores) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=", TestPath(""),
      " --world_sizes=48 --mode=weak --steps=1 --rounds=1 --warmup_steps=1",
      " --batch_size=1 --backend=threads"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 48) {
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("warning: 48 ranks on"), HasSubstr("48*")));
  }
}

// For every wrong flag, the command exits with status 2 and prints one line
// with the flag.
TEST(ScalingTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--world_sizes=0", "--world_sizes: '0'"},
      {"--world_size=0", "--world_sizes: '0'"},
      {"--world_sizes=1,x", "--world_sizes: 'x'"},
      {"--mode=medium", "--mode: 'medium'"},
      {"--backend=processes,cuda", "--backend: 'cuda'"},
      {"--backend=tcp", "--backend=tcp needs ranks on several hosts"},
      {"--type=float16", "--type: 'float16'"},
      {"--peers=jax", "--peers: 'jax'"},
      {"--peers=torch --python=/bin/false", "--peers=torch: /bin/false: "},
      {"--backend=ddp --python=/bin/false", "--peers=torch: /bin/false: "},
      {"--peers=torch --model=vit:dropout=0.1", "--peers=torch: --model has"},
      {"--lr=0", "--lr=0: must be a positive number"},
      {"--model=alexnet", "--model=alexnet: "},
      {"--model=resnet18_d2l:depth=3", "--model=resnet18_d2l:depth=3: "},
      {"--augment=blur", "--augment=blur: "},
      {"--dataset=cifar", "--dataset: 'cifar'"},
      {"--batch_size=-1", "--batch_size: -1"},
      {"--batch_size=many", "--batch_size=many"},
      {"--world_sizes=4 --batch_size=3", "--batch_size: 3"},
      {"--rounds=-1", "--rounds: -1"},
      {"--steps=-1", "--steps: -1"},
      {"--warmup_steps=0", "--warmup_steps: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunScaling(flags), "scaling", flags, expected);
  }
}

TEST(ScalingTest, NamesABatchLargerThanTheDataSetAndAFolderThatCannotBe) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(
      absl::StrCat("--data_dir=", data, " --world_sizes=1,2 --batch_size=33"));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output, StartsWith("scaling: --batch_size: a step of 66 "
                                         "images, at 2 ranks, is more than"));
  const CommandOutcome unwritable = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=/dev/null/out --batch_size=16"));
  EXPECT_EQ(unwritable.exit_status, 2);
  EXPECT_THAT(unwritable.output,
              StartsWith("scaling: --output_dir: cannot write to "
                         "/dev/null/out"));
}

TEST(ScalingTest, NamesDataThatIsMissing) {
  const CommandOutcome outcome = RunScaling("--data_dir=/absent/data");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(StartsWith("scaling: "), HasSubstr("/absent/data")));
}

TEST(ScalingTest, ExplainsItsFlags) {
  ExpectUsage(RunScaling("--help"), "scaling");
}

}  // namespace
}  // namespace lockstep::benchmarks
