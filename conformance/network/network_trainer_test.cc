// The trainer trains and evaluates ResNet-18 with SyncBatchNorm on 2 and 4
// ranks as on one: from its sampler's order to the metrics.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_fixtures.h"
#include "conformance/network/network_run.h"
#include "conformance/network/one_rank_path.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/trace.h"
#include "gtest/gtest.h"
#include "models/compute_threads.h"
#include "models/data/dataset.h"
#include "models/data_parallel.h"
#include "models/model.h"
#include "models/resnet18.h"
#include "models/trainer.h"
#include "sampler/distributed_sampler.h"

namespace lockstep {
namespace {

constexpr int kSteps = 2;
constexpr int64_t kTrainSize = kSteps * kNetworkBatchSize;
// Two of the trainer's evaluation batches, the second of 5 images: of 4 ranks,
// two have none.
constexpr int64_t kTestSize = Trainer::kEvaluationBatch + 5;
const RunRanksOptions kRunRanks = {.group = {}, .deadline = absl::Seconds(200)};

Dataset EmptyDataset(int64_t size) {
  Dataset data{.size = size,
               .channels = 1,
               .height = kNetworkSide,
               .width = kNetworkSide,
               .num_classes = 10,
               .images = {},
               .labels = std::vector<uint8_t>(size)};
  data.images.resize(size * data.image_size());
  return data;
}

// Puts sample `from` of a batch in place `to`, as the bytes that it came from.
void Place(const Samples& samples, int64_t from, int64_t to, Dataset& data) {
  const int64_t pixels = data.image_size();
  for (int64_t i = 0; i < pixels; ++i) {
    data.images[to * pixels + i] = static_cast<uint8_t>(
        std::lround(samples.images[from * pixels + i] * 255));
  }
  data.labels[to] = static_cast<uint8_t>(samples.labels[from]);
}

// The data set whose shuffled order gives the steps' batches.
Dataset TrainData(uint64_t seed) {
  auto sampler = DistributedSampler::Create(
      {.dataset_size = kTrainSize, .seed = static_cast<int64_t>(seed)});
  EXPECT_THAT(sampler, IsOk());
  const auto order = sampler->Indices();
  EXPECT_THAT(order, IsOk());
  Dataset data = EmptyDataset(kTrainSize);
  for (int64_t i = 0; i < kTrainSize; ++i) {
    Place(NetworkStepBatch(static_cast<int>(i / kNetworkBatchSize)),
          i % kNetworkBatchSize, (*order)[i], data);
  }
  return data;
}

Samples TestSamples() { return NetworkBatch(100, kTestSize); }

Dataset TestData() {
  const Samples samples = TestSamples();
  Dataset data = EmptyDataset(kTestSize);
  for (int64_t i = 0; i < kTestSize; ++i) Place(samples, i, i, data);
  return data;
}

// What a run of the trainer leaves.
struct Trained {
  NetworkTrace trace;
  std::vector<Metrics> evaluations;  // By rank.
};

absl::Status TrainRank(Communicator& group, Trained& to) {
  SetComputeThreads(1);
  const TrainerOptions options = {.batch_size = kNetworkBatchSize,
                                  .learning_rate = kNetworkLearningRate};
  const Dataset train = TrainData(options.seed);
  const std::unique_ptr<Model> model = CreateResNet18(/*seed=*/0, kNetworkSide);
  FillNetworkStart(*model, group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, *model, train, options));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> norm_group,
                            SynchroniseBatchNorm(group, *model));
  std::vector<RankMoment>& moments = to.trace.ranks[group.rank()];
  moments.push_back(MomentOf(*model, 0));
  const auto values = model->parameters().values();
  const auto gradients = model->parameters().gradients();
  RankTrace& first = to.trace.first;
  if (group.rank() == 0) {
    first.parameters.emplace_back(values.begin(), values.end());
  }
  const auto record = [&](const StepReport& report) {
    moments.push_back(MomentOf(*model, report.shard_metrics.loss_sum));
    if (group.rank() != 0) return true;
    first.parameters.emplace_back(values.begin(), values.end());
    first.gradients.emplace_back(gradients.begin(), gradients.end());
    first.samples.push_back(NetworkStepBatch(static_cast<int>(report.step)));
    return true;
  };
  LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, record).status());
  LOCKSTEP_ASSIGN_OR_RETURN(to.evaluations[group.rank()],
                            trainer->Evaluate(TestData()));
  return absl::OkStatus();
}

absl::StatusOr<Trained> TrainOn(int world_size) {
  Trained trained;
  trained.trace.ranks.resize(world_size);
  trained.evaluations.resize(world_size);
  for (const absl::Status& status : RunRanks(
           Backend::kThreads, world_size,
           [&](Communicator& group) { return TrainRank(group, trained); },
           kRunRanks)) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return trained;
}

// What every rank of `world_size` evaluates these numbers to.
absl::StatusOr<std::vector<Metrics>> EvaluateOn(
    int world_size, const std::vector<float>& parameters,
    const std::vector<float>& running) {
  std::vector<Metrics> metrics(world_size);
  const Dataset test = TestData();
  for (const absl::Status& status : RunRanks(
           Backend::kThreads, world_size,
           [&](Communicator& group) -> absl::Status {
             SetComputeThreads(1);
             const auto model = CreateResNet18(/*seed=*/0, kNetworkSide);
             std::ranges::copy(parameters,
                               model->parameters().values().begin());
             std::ranges::copy(running, model->buffers().floats().begin());
             LOCKSTEP_ASSIGN_OR_RETURN(
                 const auto trainer, Trainer::Create(group, *model, test, {}));
             LOCKSTEP_ASSIGN_OR_RETURN(const auto norm_group,
                                       SynchroniseBatchNorm(group, *model));
             LOCKSTEP_ASSIGN_OR_RETURN(metrics[group.rank()],
                                       trainer->Evaluate(test));
             return absl::OkStatus();
           },
           kRunRanks)) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
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

// The losses of 130 images in float32 and float64: a loss of 1 or more has an
// error of some hundred roundings, 1e-5 is 168; the reference's argmax is the
// answer unless two logits are equal but for that.
TEST_P(NetworkTrainerTest, TrainsAndEvaluatesAsOneRank) {
  const int world_size = GetParam();
  ClaimRecorder training({"resnet_trainer", "threads", world_size, "float32"});
  ClaimRecorder evaluation({"evaluation", "threads", world_size, "float32"});
  const auto path = TakeOneRankPath(kSteps);
  ASSERT_THAT(path, IsOk());
  const auto trained = TrainOn(world_size);
  ASSERT_THAT(trained, IsOk());
  const NetworkRun run = {
      .deal = std::vector<int64_t>(world_size, kNetworkBatchSize / world_size),
      .steps = kSteps};
  const NetworkVerdicts verdicts =
      CheckNetwork(run, path->rounding, trained->trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  training.Measure(verdicts.furthest / kNetworkSpread);
  const std::vector<float>& parameters = trained->trace.first.parameters.back();
  const std::vector<float>& running = trained->trace.ranks[0].back().running;
  const std::vector<double> wide(parameters.begin(), parameters.end());
  const ResNetReference<double> want(
      wide, std::vector<double>(running.begin(), running.end()), TestSamples(),
      /*training=*/false);
  const Metrics& got = trained->evaluations[0];
  EXPECT_NEAR(got.loss_sum, want.loss_sum(), 1e-5 * want.loss_sum());
  EXPECT_EQ(got.correct, want.correct());
  EXPECT_EQ(got.samples, kTestSize);
  ExpectBits(trained->evaluations, got);
  for (const int other : {1, 2, 4}) {
    if (other == world_size) continue;
    const auto evaluated = EvaluateOn(other, parameters, running);
    ASSERT_THAT(evaluated, IsOk());
    ExpectBits(*evaluated, got);
    evaluation.AddExact();
  }
  // The control: what the running statistics were matters.
  const auto changed = EvaluateOn(1, parameters, NetworkRunning(2));
  ASSERT_THAT(changed, IsOk());
  EXPECT_GT(std::abs((*changed)[0].loss_sum - got.loss_sum),
            1e-3 * got.loss_sum);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NetworkTrainerTest, testing::Values(2, 4),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

}  // namespace
}  // namespace lockstep
