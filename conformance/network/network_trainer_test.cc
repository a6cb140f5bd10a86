// Checks the trainer, including its sampler's order. It takes the steps of
// ResNet-18 that one rank takes on the global batch, and evaluates to the same
// metrics at every world size. A second step continues from the first.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/reordered.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/network_reference.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"

namespace lockstep::conformance {
namespace {

constexpr int64_t kTrainerSide = 10;

// Two of the trainer's evaluation batches. The second has 5 images, so that two
// of 4 ranks have none.
constexpr int64_t kTestSize = Trainer::kEvaluationBatch + 5;

// Returns the samples as their original bytes, with sample i in place
// places[i].
MemoryDataset DataOf(const Samples& samples, const IndexOrder& places) {
  std::vector<uint8_t> images(samples.images.size());
  std::vector<uint8_t> labels(samples.labels.size());
  const int64_t pixels = kTrainerSide * kTrainerSide;
  for (int64_t from = 0; from < samples.size(); ++from) {
    for (int64_t i = 0; i < pixels; ++i) {
      images[places[from] * pixels + i] = static_cast<uint8_t>(
          std::lround(samples.images[from * pixels + i] * 255));
    }
    labels[places[from]] = static_cast<uint8_t>(samples.labels[from]);
  }
  return MemoryDataset({kTrainerSide, kTrainerSide, 1}, 10, std::move(images),
                       std::move(labels));
}

// Returns the data set whose shuffled order gives the steps' batches.
MemoryDataset TrainData(uint64_t seed, int steps) {
  Samples all;
  for (int step = 0; step < steps; ++step) {
    const Samples batch = TestedResNet().StepBatch(step);
    all.images.insert(all.images.end(), batch.images.begin(),
                      batch.images.end());
    all.labels.insert(all.labels.end(), batch.labels.begin(),
                      batch.labels.end());
  }
  auto sampler = DistributedSampler::Create(
      {.dataset_size = all.size(), .seed = static_cast<int64_t>(seed)});
  EXPECT_THAT(sampler, IsOk());
  const auto order = sampler->Indices();
  EXPECT_THAT(order, IsOk());
  return DataOf(all, *order);
}

Samples TestSamples() { return TestedResNet().Batch(100, kTestSize); }

MemoryDataset TestData() {
  return DataOf(TestSamples(), IdentityOf(kTestSize));
}

// The result of a run of the trainer.
struct Trained {
  NetworkTrace trace;
  std::vector<Metrics> evaluations;  // By rank.
};

absl::Status TrainRank(Communicator& group, int steps, Trained& to) {
  SetComputeThreads(1);
  const TrainerOptions options = {.batch_size = kNetworkBatchSize,
                                  .learning_rate = kNetworkLearningRate};
  const MemoryDataset train = TrainData(options.seed, steps);
  const std::unique_ptr<Model> model = TestedResNet().CreateModel();
  FillNetworkStart(TestedResNet(), group.rank(), model->parameters(),
                   model->buffers());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, *model, train, options));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> norm_group,
                            SynchroniseBatchNorm(group, *model));
  std::vector<RankMoment>& moments = to.trace.ranks[group.rank()];
  RankTrace* const full = group.rank() == 0 ? &to.trace.first : nullptr;
  RecordMoment(TestedResNet(), model->parameters(), model->buffers(), -1, 0,
               moments, full);
  const auto record = [&](const StepReport& report) {
    RecordMoment(TestedResNet(), model->parameters(), model->buffers(),
                 static_cast<int>(report.step), report.shard_metrics.loss_sum,
                 moments, full);
    return true;
  };
  LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, record).status());
  LOCKSTEP_ASSIGN_OR_RETURN(to.evaluations[group.rank()],
                            trainer->Evaluate(TestData()));
  return absl::OkStatus();
}

// Runs `fn` on each of so many ranks. Errors: the first rank's.
absl::Status OnThreads(int world_size,
                       const std::function<absl::Status(Communicator&)>& fn) {
  for (const absl::Status& status :
       RunRanks(Backend::kThreads, world_size, fn)) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::StatusOr<Trained> TrainOn(int world_size, int steps) {
  Trained trained;
  trained.trace.ranks.resize(world_size);
  trained.evaluations.resize(world_size);
  LOCKSTEP_RETURN_IF_ERROR(OnThreads(world_size, [&](Communicator& group) {
    return TrainRank(group, steps, trained);
  }));
  return trained;
}

// Returns the metrics that every rank of `world_size` computes for these
// numbers.
absl::StatusOr<std::vector<Metrics>> EvaluateOn(
    int world_size, const std::vector<float>& parameters,
    const std::vector<float>& running) {
  std::vector<Metrics> metrics(world_size);
  const MemoryDataset test = TestData();
  LOCKSTEP_RETURN_IF_ERROR(
      OnThreads(world_size, [&](Communicator& group) -> absl::Status {
        SetComputeThreads(1);
        const auto model = TestedResNet().CreateModel();
        std::ranges::copy(parameters, model->parameters().values().begin());
        std::ranges::copy(running, model->buffers().floats().begin());
        LOCKSTEP_ASSIGN_OR_RETURN(const auto trainer,
                                  Trainer::Create(group, *model, test, {}));
        LOCKSTEP_ASSIGN_OR_RETURN(const auto norm_group,
                                  SynchroniseBatchNorm(group, *model));
        LOCKSTEP_ASSIGN_OR_RETURN(metrics[group.rank()],
                                  trainer->Evaluate(test));
        return absl::OkStatus();
      }));
  return metrics;
}

void ExpectBits(const std::vector<Metrics>& got, const Metrics& want) {
  for (const Metrics& metrics : got) {
    EXPECT_EQ(metrics.loss_sum, want.loss_sum);
    EXPECT_EQ(metrics.correct, want.correct);
    EXPECT_EQ(metrics.samples, want.samples);
  }
}

class NetworkTrainerTest : public testing::TestWithParam<int> {};

// Compares the losses of 130 images in float32 and float64. A loss of 1 or more
// has an error of some hundred roundings; 1e-5 is 168 of them. The reference's
// argmax is the answer unless two logits are that close.
TEST_P(NetworkTrainerTest, TrainsAndEvaluatesAsOneRank) {
  const int world_size = GetParam();
  ClaimRecorder training({"resnet_trainer", "threads", world_size, "float32"});
  ClaimRecorder evaluation({"evaluation", "threads", world_size, "float32"});
  const int steps = 2;
  const auto trained = TrainOn(world_size, steps);
  ASSERT_THAT(trained, IsOk());
  const NetworkRun run = {
      .deal = std::vector<int64_t>(world_size, kNetworkBatchSize / world_size),
      .steps = steps};
  const NetworkVerdicts verdicts = CheckNetwork(run, trained->trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  training.Measure(verdicts.furthest / kNetworkSpread);
  const std::vector<float>& parameters = trained->trace.first.parameters.back();
  const std::vector<float>& running = trained->trace.ranks[0].back().running;
  const std::vector<double> wide(parameters.begin(), parameters.end());
  const Samples test = TestSamples();
  const NetworkReference<double> want(
      TestedResNet().network(), wide,
      std::vector<double>(running.begin(), running.end()),
      {.images = test.images, .labels = test.labels}, /*training=*/false);
  const Metrics& got = trained->evaluations[0];
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-5 * want.loss_sum);
  EXPECT_EQ(got.correct, want.correct);
  EXPECT_EQ(got.samples, kTestSize);
  ExpectBits(trained->evaluations, got);
  for (const int other : {1, 2, 4}) {
    if (other == world_size) continue;
    const auto evaluated = EvaluateOn(other, parameters, running);
    ASSERT_THAT(evaluated, IsOk());
    ExpectBits(*evaluated, got);
    evaluation.AddExact();
  }
  // The control: other running statistics change the loss.
  const auto changed = EvaluateOn(1, parameters, TestedResNet().Running(2));
  ASSERT_THAT(changed, IsOk());
  EXPECT_GT(std::abs((*changed)[0].loss_sum - got.loss_sum),
            1e-3 * got.loss_sum);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NetworkTrainerTest, testing::Values(2, 4),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// Two steps of ResNet-18 in float64 from the same start, with an update of
// `learning_rate` between them.
struct TwoSteps {
  TwoSteps(std::span<const Samples> batches, double learning_rate) {
    const TestedNetwork& tested = TestedResNet();
    const std::vector<float> at_first = tested.Running(1);
    const std::vector<double> running(at_first.begin(), at_first.end());
    const std::vector<double> start(tested.start().begin(),
                                    tested.start().end());
    const auto step = [&](std::span<const double> values, int number) {
      const Samples& batch = batches[number];
      return NetworkReference<double>(
          tested.network(), values, running,
          {.images = batch.images, .labels = batch.labels}, /*training=*/true);
    };
    const double mean = 1.0 / static_cast<double>(batches[0].size());
    const std::vector<double> first = step(start, 0).Gradient(mean);
    for (size_t i = 0; i < start.size(); ++i) {
      parameters.push_back(start[i] - learning_rate * first[i]);
    }
    const NetworkReference<double> second = step(parameters, 1);
    loss_sum = second.loss_sum;
    gradient = second.Gradient(1);
  }

  std::vector<double> parameters;  // Between the steps.
  double loss_sum = 0;             // The second step's.
  std::vector<double> gradient;    // The gradient of that sum.
};

// Returns how far the second step's loss may be from `exact` in float32. The
// gradient of the first step has a rounding error, and the update rounds twice.
// The loss moves by these errors times its slope. Then the second step rounds
// too. The slope is the larger of the slopes at the exact and at the actual
// parameters.
double SecondLossBound(const TwoSteps& exact, const NetworkTrace& trace) {
  const TestedNetwork& tested = TestedResNet();
  const std::vector<float> running = tested.Running(1);
  const auto in = [&](int step) {
    return StepInput{tested, step, trace.first.parameters[step], running,
                     trace.first.samples[step]};
  };
  const Rounding first = MeasureRounding(in(0));
  const auto slopes = TensorNorms(tested.specs(), exact.gradient);
  const auto there = TensorNorms(tested.specs(), ReferenceStep(in(1)).gradient);
  const auto sizes = TensorNorms(tested.specs(), exact.parameters);
  double bound = kNetworkSpread * MeasureRounding(in(1)).loss_sum;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double moved =
        kNetworkLearningRate * kNetworkSpread * first.gradients[i] +
        2 * kUnitRoundoff * sizes[i];
    bound += moved * std::max(slopes[i], kNetworkBatchSize * there[i]);
  }
  return bound;
}

TEST(SecondStepTest, GoesOnFromTheFirstAsTheReferenceDoes) {
  const NetworkRun run = {.deal = {kNetworkBatchSize}, .steps = 2};
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  const std::span<const Samples> batches = trace->first.samples;
  const TwoSteps exact(batches, kNetworkLearningRate);
  const double bound = SecondLossBound(exact, *trace);
  const double got = trace->ranks[0][2].loss_sum;
  EXPECT_NEAR(got, exact.loss_sum, bound);
  RecordProperty("over_bound",
                 absl::StrCat(std::abs(got - exact.loss_sum) / bound));
  // The controls: an update that is skipped, and updates at a wrong rate.
  for (const double rate : {0.0, 0.98, 1.02}) {
    const TwoSteps wrong(batches, rate * kNetworkLearningRate);
    EXPECT_GT(std::abs(got - wrong.loss_sum), bound) << rate;
  }
}

}  // namespace
}  // namespace lockstep::conformance
