// Tests the steps of ranks on GPUs of their own, on the stand-in, which can
// choose the order in which streams run.
#include "models/train/gpu_rank_steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/reference/network_inputs.h"
#include "models/train/data_parallel.h"
#include "models/train/rank_steps.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Order;
using testing::Each;

// Graphs are captured in steps 2 to 4, one for each slot, and replayed from
// then on, except in step 9, whose batch is smaller.
constexpr int kSteps = 14;
constexpr const char* kLeNet = "lenet_bn";
constexpr const char* kVit =
    "vit:patch=8,width=6,depth=1,heads=2,dropout=0.1,attention_dropout=0.1,"
    "drop_path=0.2";

Network Described(const std::string& spec = kLeNet) {
  absl::StatusOr<Network> network = CreateNetwork(
      spec, {.channels = 1, .height = 16, .width = 16, .classes = 4});
  EXPECT_THAT(network, IsOk());
  return *std::move(network);
}

constexpr int64_t kShard = 2;

// A rank's part of a step: all have kShard samples, but in step 9 each has one.
int64_t ShardOf(int step) { return step == 9 ? 1 : kShard; }

float LearningRate(int step) { return 0.05f / static_cast<float>(1 + step); }

// The state of a rank after its steps.
struct Outcome {
  std::vector<float> values;
  std::vector<float> running;  // The float buffers.
  int64_t batches = 0;
  double loss_sum = 0;  // Of all its shards.
  int64_t samples = 0;
  double evaluated = 0;  // The loss of a large batch, halfway.
  int64_t launches = 0;  // The host's, of kernels in the last step.
  OptimizerState state;
  int64_t skipped = 0;  // Steps in float16 that changed nothing.
  // The steps' times by the GPU, and the results that sum them up.
  std::vector<StepTimes> gpu_steps;
  StepTimes sum;
};

struct GpuOptions {
  const char* network = kLeNet;
  Order order = Order::kAtOnce;
  int64_t metrics_interval = kSteps;
  bool graphs = false;
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  OptimizerOptions optimizer = {};
  int begin = 0, end = kSteps;  // The steps to take.
  const Outcome* from =
      nullptr;         // What rank 0 begins with; null: first weights.
  int huge_step = -1;  // In this step a pixel of rank 0 is beyond float16.
};

// Gives the steps an outcome's weights, buffers and state.
absl::Status Continue(RankSteps& steps, const Network& network,
                      const Outcome& from) {
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  std::ranges::copy(from.values, parameters.values().begin());
  std::ranges::copy(from.running, buffers.floats().begin());
  std::ranges::fill(buffers.counters(), from.batches);
  LOCKSTEP_RETURN_IF_ERROR(steps.Write(parameters, buffers));
  return steps.WriteOptimizer(from.state);
}

// Copies the state of the steps to the outcome.
absl::Status Read(RankSteps& steps, const Network& network, Outcome& outcome) {
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  LOCKSTEP_RETURN_IF_ERROR(steps.Read(parameters, buffers));
  outcome.values.assign(parameters.values().begin(), parameters.values().end());
  outcome.running.assign(buffers.floats().begin(), buffers.floats().end());
  if (buffers.count() > 0) outcome.batches = buffers.counters()[0];
  LOCKSTEP_ASSIGN_OR_RETURN(outcome.state, steps.ReadOptimizer());
  return absl::OkStatus();
}

// Takes the steps, each on a batch of its own. Evaluates a batch halfway, which
// needs more memory than the steps.
absl::StatusOr<Outcome> TakeSteps(RankSteps& steps, const Network& network,
                                  int rank, int world_size,
                                  const GpuOptions& options) {
  if (rank == 0 && options.from != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Continue(steps, network, *options.from));
  }
  LOCKSTEP_RETURN_IF_ERROR(steps.Begin());
  Outcome outcome;
  for (int step = options.begin; step < options.end; ++step) {
    const int64_t count = ShardOf(step);
    const int64_t global = count * world_size;
    RandomSamples samples = RandomBatchOf(network, 10 + step, global);
    if (step == options.huge_step) samples.images[0] = 1e6f;
    const int64_t size = network.input_shape().size();
    const int64_t begin = rank * count;
    const Batch shard = {
        .images = std::span(samples.images).subspan(begin * size, count * size),
        .labels = std::span(samples.labels).subspan(begin, count),
        .seed = 3,
        .step = step};
    const bool with_metrics =
        (step + 1) % options.metrics_interval == 0 || step + 1 == options.end;
    const int64_t before = standin::CountsOfThisThread().launches;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepResult result,
        steps.Step(shard, global, LearningRate(step), with_metrics));
    outcome.launches = standin::CountsOfThisThread().launches - before;
    outcome.loss_sum += result.metrics.loss_sum;
    outcome.samples += result.metrics.samples;
    outcome.skipped += result.skipped_steps;
    outcome.gpu_steps.insert(outcome.gpu_steps.end(), result.gpu_steps.begin(),
                             result.gpu_steps.end());
    outcome.sum.compute += result.times.compute;
    outcome.sum.exposed_communication += result.times.exposed_communication;
    if (step != kSteps / 2) continue;
    const RandomSamples many = RandomBatchOf(network, 9, 24);
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics evaluated,
                              steps.Evaluate(many.batch()));
    outcome.evaluated = evaluated.mean_loss();
  }
  LOCKSTEP_RETURN_IF_ERROR(steps.BroadcastBuffers());
  LOCKSTEP_RETURN_IF_ERROR(Read(steps, network, outcome));
  return outcome;
}

// Returns the outcomes of ranks on the stand-in's GPUs.
std::vector<Outcome> OnGpus(int ranks, const GpuOptions& options) {
  standin::SetDevices({.count = ranks});
  standin::SetSchedule({.order = options.order});
  const Network network = Described(options.network);
  std::vector<Outcome> outcomes(ranks);
  const auto statuses = RunRanks(
      Backend::kThreads, ranks, [&](Communicator& group) -> absl::Status {
        std::string shared;
        // The ranks begin with other weights; rank 0's are the ones that count.
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<GpuRankSteps> steps,
            GpuRankSteps::Create(
                group, group.rank(), network,
                {.seed = static_cast<uint64_t>(group.rank()),
                 .bucket_bytes = 4096,
                 .sync_bn = ranks > 1 && network.Count<BatchNormOp>() > 0,
                 .precision = options.precision,
                 .optimizer = options.optimizer,
                 .largest_shard = kShard,
                 .graph_samples =
                     options.graphs ? GraphSamples(kShard * ranks, ranks) : 0},
                shared));
        LOCKSTEP_ASSIGN_OR_RETURN(
            outcomes[group.rank()],
            TakeSteps(*steps, network, group.rank(), ranks, options));
        return absl::OkStatus();
      });
  standin::SetSchedule({});
  standin::SetDevices({});
  EXPECT_THAT(statuses, Each(IsOk()));
  return outcomes;
}

// Returns the outcome of one rank on the CPU with the batches of `world_size`
// ranks, whose metrics are of the whole batches.
Outcome OnCpu(int world_size, const GpuOptions& options = {}) {
  Outcome outcome;
  const auto statuses =
      RunRanks(Backend::kThreads, 1, [&](Communicator& group) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<CpuReplica> model,
                                  CreateCpuReplica(Described(), {.seed = 0}));
        ModelSteps steps(group, *model, 0, options.optimizer);
        const Network network = Described();
        if (options.from != nullptr) {
          LOCKSTEP_RETURN_IF_ERROR(Continue(steps, network, *options.from));
        }
        LOCKSTEP_RETURN_IF_ERROR(steps.Begin());
        for (int step = options.begin; step < options.end; ++step) {
          const int64_t global = ShardOf(step) * world_size;
          const RandomSamples samples =
              RandomBatchOf(network, 10 + step, global);
          LOCKSTEP_ASSIGN_OR_RETURN(
              const StepResult result,
              steps.Step(samples.batch(), global, LearningRate(step), true));
          outcome.loss_sum += result.metrics.loss_sum;
        }
        return Read(steps, network, outcome);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return outcome;
}

double LargestDifference(const std::vector<float>& a,
                         const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  }
  return largest;
}

class GpuRankStepsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, GpuRankStepsTest, testing::Values(1, 2),
                         testing::PrintToStringParamName());

// Expects that the ranks took the steps that `want` did.
void ExpectSameSteps(const std::vector<Outcome>& got,
                     const std::vector<Outcome>& want) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    SCOPED_TRACE(testing::Message() << "rank " << rank);
    EXPECT_EQ(got[rank].values, want[0].values);
    EXPECT_EQ(got[rank].state, want[0].state);
    EXPECT_EQ(got[rank].running, want[0].running);
    EXPECT_EQ(got[rank].batches, want[0].batches);
    EXPECT_EQ(got[rank].samples, want[rank].samples);
    EXPECT_EQ(got[rank].evaluated, want[rank].evaluated);
    EXPECT_NEAR(got[rank].loss_sum, want[rank].loss_sum, 1e-9);
  }
}

constexpr Order kOrders[] = {Order::kAtOnce, Order::kOldestStreamFirst,
                             Order::kNewestStreamFirst};

// More steps than slots are in flight between metrics.
TEST_P(GpuRankStepsTest, EveryOrderOfStreamsTakesTheSameSteps) {
  const int ranks = GetParam();
  const std::vector<Outcome> want = OnGpus(ranks, {.metrics_interval = 1});
  EXPECT_EQ(want[0].batches, kSteps);
  EXPECT_GT(want[0].launches, 0);
  int64_t samples = 0;
  for (const Outcome& rank : want) samples += rank.samples;
  EXPECT_EQ(samples, (kShard * kSteps - 1) * ranks);
  for (const Order order : kOrders) {
    SCOPED_TRACE(static_cast<int>(order));
    ExpectSameSteps(OnGpus(ranks, {.order = order}), want);
  }
}

TEST_P(GpuRankStepsTest, GraphsTakeTheSameSteps) {
  const int ranks = GetParam();
  const std::vector<Outcome> want = OnGpus(ranks, {});
  for (const Order order : kOrders) {
    SCOPED_TRACE(static_cast<int>(order));
    const std::vector<Outcome> got =
        OnGpus(ranks, {.order = order, .graphs = true});
    ExpectSameSteps(got, want);
    for (const Outcome& rank : got) EXPECT_EQ(rank.launches, 0);
  }
}

TEST_P(GpuRankStepsTest, GraphsDrawNewMasksInEachStep) {
  const int ranks = GetParam();
  ExpectSameSteps(OnGpus(ranks, {.network = kVit, .graphs = true}),
                  OnGpus(ranks, {.network = kVit}));
}

TEST_P(GpuRankStepsTest, GraphsTakeTheSameStepsInSixteenBits) {
  const int ranks = GetParam();
  for (const ConvolutionPrecision precision :
       {ConvolutionPrecision::kBFloat16, ConvolutionPrecision::kFloat16}) {
    SCOPED_TRACE(Name(precision));
    const std::vector<Outcome> got =
        OnGpus(ranks, {.graphs = true, .precision = precision});
    ExpectSameSteps(got, OnGpus(ranks, {.precision = precision}));
    for (const Outcome& rank : got) EXPECT_EQ(rank.launches, 0);
  }
}

// Step 11 is a replay.
TEST_P(GpuRankStepsTest, AReplaySkipsAStepOnAllRanks) {
  const int ranks = GetParam();
  GpuOptions options = {.network = "lenet",
                        .metrics_interval = 1,
                        .precision = ConvolutionPrecision::kFloat16,
                        .huge_step = 11};
  const std::vector<Outcome> want = OnGpus(ranks, options);
  options.graphs = true;
  for (const Outcome& rank : OnGpus(ranks, options)) {
    EXPECT_EQ(rank.skipped, 1);
    EXPECT_EQ(rank.values, want[0].values);
  }
  options.huge_step = -1;
  const std::vector<Outcome> finite = OnGpus(ranks, options);
  EXPECT_EQ(finite[0].skipped, 0);
  EXPECT_NE(finite[0].values, want[0].values);
}

constexpr OptimizerOptions kMomentum = {.momentum = 0.9, .weight_decay = 0.01};
// A large epsilon, since without it rounding decides the sign of the change
// where a gradient is about 0.
constexpr OptimizerOptions kAdamW = {
    .kind = OptimizerKind::kAdamW, .weight_decay = 0.1, .epsilon = 0.1};

TEST_P(GpuRankStepsTest, GraphsTakeTheSameStepsOfEveryOptimizer) {
  const int ranks = GetParam();
  for (const OptimizerOptions& optimizer : {kMomentum, kAdamW}) {
    const std::vector<Outcome> want = OnGpus(ranks, {.optimizer = optimizer});
    EXPECT_EQ(want[0].state.steps, kSteps);
    const std::vector<Outcome> got =
        OnGpus(ranks, {.graphs = true, .optimizer = optimizer});
    ExpectSameSteps(got, want);
    for (const Outcome& rank : got) EXPECT_EQ(rank.launches, 0);
  }
}

// Step 11 is a replay.
TEST_P(GpuRankStepsTest, ASkippedReplayKeepsTheOptimizersState) {
  const int ranks = GetParam();
  GpuOptions options = {.network = "lenet",
                        .metrics_interval = 1,
                        .precision = ConvolutionPrecision::kFloat16,
                        .optimizer = kAdamW,
                        .end = 12,
                        .huge_step = 11};
  const std::vector<Outcome> eager = OnGpus(ranks, options);
  options.graphs = true;
  const std::vector<Outcome> replayed = OnGpus(ranks, options);
  options.end = 11;
  const std::vector<Outcome> before = OnGpus(ranks, options);
  EXPECT_EQ(before[0].state.steps, 11);
  for (const std::vector<Outcome>& outcomes : {eager, replayed}) {
    for (const Outcome& rank : outcomes) {
      EXPECT_EQ(rank.skipped, 1);
      EXPECT_EQ(rank.values, before[0].values);
      EXPECT_EQ(rank.state, before[0].state);
    }
  }
}

// A later step that was taken for an earlier one would begin before its
// predecessor's end. The first step and the one after the evaluation follow no
// step.
TEST_P(GpuRankStepsTest, TimesEveryStepFromTheEndOfTheOneBefore) {
  for (const int64_t interval : {1, 3, kSteps}) {
    for (const Outcome& rank : OnGpus(GetParam(), {.metrics_interval = interval,
                                                  .graphs = interval > 1})) {
      ASSERT_EQ(rank.gpu_steps.size(), kSteps);
      absl::Duration compute, exposed;
      for (int step = 0; step < kSteps; ++step) {
        const StepTimes& times = rank.gpu_steps[step];
        compute += times.compute;
        exposed += times.exposed_communication;
        EXPECT_GT(times.compute, absl::ZeroDuration());
        if (step == 0 || step == kSteps / 2 + 1) {
          EXPECT_EQ(times.data_wait, absl::ZeroDuration());
        } else {
          EXPECT_GT(times.data_wait, absl::ZeroDuration()) << step;
        }
      }
      EXPECT_EQ(compute, rank.sum.compute);
      EXPECT_EQ(exposed, rank.sum.exposed_communication);
    }
  }
}

// Rounding moves a weight by about 1e-7 of its size in each step; the steps
// move weights by more than 1e-2.
TEST_P(GpuRankStepsTest, TakesTheCpusSteps) {
  const int ranks = GetParam();
  const Outcome cpu = OnCpu(ranks);
  double loss_sum = 0;
  for (const Outcome& rank : OnGpus(ranks, {.graphs = true})) {
    EXPECT_LT(LargestDifference(rank.values, cpu.values), 1e-4);
    loss_sum += rank.loss_sum;
  }
  EXPECT_NEAR(loss_sum, cpu.loss_sum, 1e-4 * cpu.loss_sum);
  const Parameters first = CreateParameters(Described(), 0);
  EXPECT_GT(LargestDifference({first.values().begin(), first.values().end()},
                              cpu.values),
            1e-2);
}

// Expects about the same weights and moments. The limit is that of
// TakesTheCpusSteps, for values and for each array's largest element.
void ExpectNear(const Outcome& got, const Outcome& want) {
  EXPECT_LT(LargestDifference(got.values, want.values), 1e-4);
  EXPECT_EQ(got.state.steps, want.state.steps);
  ASSERT_EQ(got.state.arrays.size(), want.state.arrays.size());
  for (size_t i = 0; i < want.state.arrays.size(); ++i) {
    const std::vector<float>& array = want.state.arrays[i];
    const double largest =
        LargestDifference(array, std::vector<float>(array.size()));
    EXPECT_LT(LargestDifference(got.state.arrays[i], array), 1e-3 * largest)
        << i;
    EXPECT_GT(largest, 0) << i;
  }
}

// Rank 0 alone reads the checkpoint: the others begin with its state.
TEST_P(GpuRankStepsTest, ARunContinuesOnTheOtherDevice) {
  const int ranks = GetParam();
  for (const OptimizerOptions& optimizer : {kMomentum, kAdamW}) {
    const Outcome whole = OnCpu(ranks, {.optimizer = optimizer});
    const Outcome cpu = OnCpu(ranks, {.optimizer = optimizer, .end = 6});
    EXPECT_GT(LargestDifference(cpu.values, whole.values), 1e-3);
    const std::vector<Outcome> gpus = OnGpus(ranks, {.graphs = true,
                                                     .optimizer = optimizer,
                                                     .begin = 6,
                                                     .end = 10,
                                                     .from = &cpu});
    for (const Outcome& rank : gpus) {
      EXPECT_EQ(rank.values, gpus[0].values);
      EXPECT_EQ(rank.state, gpus[0].state);
    }
    ExpectNear(gpus[0], OnCpu(ranks, {.optimizer = optimizer, .end = 10}));
    ExpectNear(
        OnCpu(ranks, {.optimizer = optimizer, .begin = 10, .from = &gpus[0]}),
        whole);
  }
}

TEST(GpuRankStepsErrorTest, EveryRankHearsOfTheError) {
  standin::SetDevices({.count = 2});
  const Network lenet = *CreateNetwork("lenet");
  const auto statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& group) -> absl::Status {
        std::string shared;
        // Rank 1 has no such device.
        return GpuRankSteps::Create(group, group.rank() == 1 ? 7 : 0, lenet, {},
                                    shared)
            .status();
      });
  standin::SetDevices({});
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      testing::HasSubstr("cudaSetDevice"))));
}

TEST(GpuRankStepsErrorTest, ASharedGpuIsNoError) {
  const Network lenet = *CreateNetwork("lenet");
  const auto statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& group) -> absl::Status {
        std::string shared;
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<GpuRankSteps> steps,
            GpuRankSteps::Create(group, 0, lenet, {}, shared));
        EXPECT_EQ(steps, nullptr);
        EXPECT_NE(shared, "");
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

}  // namespace
}  // namespace lockstep
