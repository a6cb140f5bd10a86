// N ranks evaluate to what one rank evaluates to, to the last bit, through the
// trainer's own path.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation_check.h"
#include "conformance/fixtures.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/compute_threads.h"
#include "models/data/dataset.h"
#include "models/data_parallel.h"
#include "models/lenet.h"
#include "models/model.h"
#include "models/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/exact_shard.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr int64_t kBatch = Trainer::kEvaluationBatch;

// A prime above ten batches, so that neither ranks nor batches are even; fewer
// batches than ranks; fewer samples than ranks; one sample.
constexpr int64_t kManySamples = 1291;
static_assert(kManySamples > 10 * kBatch);
constexpr int64_t kSizes[] = {kManySamples, kBatch + 3, 5, 1};

const Dataset& DataOf(int64_t size) {
  static auto& cache = *new std::map<int64_t, Dataset>;
  if (!cache.contains(size)) cache.emplace(size, BlobDataset(size));
  return cache.at(size);
}

void SetParameters(Model& lenet, uint32_t draw) {
  const std::vector<float> values = HeLeNet(draw);
  std::copy(values.begin(), values.end(), lenet.parameters().values().begin());
}

Evaluation Mean(double loss_sum, int64_t correct, int64_t samples) {
  const double n = static_cast<double>(samples);
  return {loss_sum / n, static_cast<double>(correct) / n, samples};
}

Evaluation MeanOf(const Metrics& metrics) {
  return Mean(metrics.loss_sum, metrics.correct, metrics.samples);
}

// What the model makes of each batch of the samples, in order.
absl::StatusOr<std::vector<Metrics>> EvaluateBatches(
    Model& model, const Dataset& data, std::span<const int64_t> samples) {
  std::vector<Metrics> parts;
  while (!samples.empty()) {
    const std::span<const int64_t> batch =
        samples.first(std::min<size_t>(samples.size(), kBatch));
    samples = samples.subspan(batch.size());
    std::vector<float> images(batch.size() * data.image_size());
    std::vector<int32_t> labels(batch.size());
    data.GatherImages(batch, images);
    data.GatherLabels(batch, labels);
    LOCKSTEP_ASSIGN_OR_RETURN(parts.emplace_back(),
                              model.Evaluate({images, labels}));
  }
  return parts;
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

// One rank, without the code under test: the batches' losses, which are below
// 2^20, are added as whole multiples of 2^-100.
Evaluation ComputeOneRank(int64_t size, uint32_t draw) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  SetParameters(*model, draw);
  const std::vector<Metrics> parts =
      EvaluateBatches(*model, DataOf(size), Range(0, size)).value();
  __int128 loss = 0;
  Metrics sum;
  for (const Metrics& part : parts) {
    const double units = std::ldexp(part.loss_sum, 100);
    EXPECT_TRUE(part.loss_sum < 0x1p20 && units == std::floor(units));
    loss += static_cast<__int128>(units);
    sum += part;
  }
  return Mean(std::ldexp(static_cast<double>(loss), -100), sum.correct,
              sum.samples);
}

// The draw that the tests evaluate.
constexpr uint32_t kDraw = 53;

const Evaluation& OneRank(int64_t size) {
  static auto& cache = *new std::map<int64_t, Evaluation>;
  if (!cache.contains(size)) cache.emplace(size, ComputeOneRank(size, kDraw));
  return cache.at(size);
}

// How a rank evaluates a data set with its model.
using Evaluator = std::function<absl::StatusOr<Evaluation>(
    Communicator&, Model&, const Dataset&)>;

absl::StatusOr<Evaluation> EvaluateByTrainer(Communicator& group, Model& model,
                                             const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, model, data, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, trainer->Evaluate(data));
  return MeanOf(metrics);
}

// Only rank 0's model is of the draw, until it is broadcast.
absl::StatusOr<std::vector<Evaluation>> RunEvaluation(Backend backend,
                                                      int world_size,
                                                      const Dataset& data,
                                                      const Evaluator& evaluate,
                                                      uint32_t draw = kDraw) {
  const auto results = RunRanksCollect(
      backend, world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        SetComputeThreads(1);
        const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
        if (group.rank() == 0) SetParameters(*model, draw);
        LOCKSTEP_RETURN_IF_ERROR(
            BroadcastParameters(group, model->parameters()));
        LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation evaluation,
                                  evaluate(group, *model, data));
        return std::string(reinterpret_cast<const char*>(&evaluation),
                           sizeof(evaluation));
      });
  std::vector<Evaluation> ranks;
  for (const absl::StatusOr<std::string>& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(result.status());
    std::memcpy(&ranks.emplace_back(), result->data(), sizeof(Evaluation));
  }
  return ranks;
}

Metrics SumOf(const std::vector<Metrics>& parts) {
  Metrics sum;
  for (const Metrics& part : parts) sum += part;
  return sum;
}

// The rank's share of the first `size` samples, in whole batches.
absl::StatusOr<Metrics> EvaluateShare(const Communicator& group, Model& model,
                                      const Dataset& data, int64_t size) {
  const int64_t batches = (size + kBatch - 1) / kBatch;
  const Shard shard = ExactShard(batches, group.world_size(), group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(model, data,
                      Range(std::min(size, shard.begin * kBatch),
                            std::min(size, shard.end * kBatch))));
  return SumOf(parts);
}

// The planted bugs.

absl::StatusOr<Evaluation> ReportOwnShare(Communicator& group, Model& model,
                                          const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  return MeanOf(share);
}

absl::StatusOr<Evaluation> PadSampler(Communicator& group, Model& model,
                                      const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create({.dataset_size = data.size,
                                  .world_size = group.world_size(),
                                  .rank = group.rank(),
                                  .shuffle = false}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> samples,
                            sampler.Indices());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Metrics> parts,
                            EvaluateBatches(model, data, samples));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum,
                            AllReduceMetrics(group, SumOf(parts)));
  return MeanOf(sum);
}

absl::StatusOr<Evaluation> DropPartialBatch(Communicator& group, Model& model,
                                            const Dataset& data) {
  const int64_t whole = data.size / kBatch * kBatch;
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, whole));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum, AllReduceMetrics(group, share));
  return MeanOf(sum);
}

absl::StatusOr<Evaluation> AverageRanksMeans(Communicator& group, Model& model,
                                             const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  double means[] = {MeanOf(share).loss, MeanOf(share).accuracy};
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(means));
  return Evaluation{means[0] / group.world_size(),
                    means[1] / group.world_size(), data.size};
}

absl::StatusOr<Evaluation> AverageRanksAccuracies(Communicator& group,
                                                  Model& model,
                                                  const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(Evaluation right,
                            EvaluateByTrainer(group, model, data));
  LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation wrong,
                            AverageRanksMeans(group, model, data));
  right.accuracy = wrong.accuracy;
  return right;
}

absl::StatusOr<Evaluation> SumPlainly(Communicator& group, Model& model,
                                      const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum, AllReduceMetrics(group, share));
  return MeanOf(sum);
}

using Case = std::tuple<Backend, int>;

class EvaluationEquivalenceTest : public testing::TestWithParam<Case> {};

TEST_P(EvaluationEquivalenceTest, EqualsOneRankToTheBit) {
  const auto [backend, world_size] = GetParam();
  for (const int64_t size : kSizes) {
    const Evaluation want = OneRank(size);
    ASSERT_EQ(want.samples, size);
    ASSERT_GT(want.loss, 1e-3);
    if (size == kManySamples) {  // Else a constant would pass.
      ASSERT_GT(want.accuracy, 0.01);
      ASSERT_LT(want.accuracy, 0.99);
    }
    const auto ranks =
        RunEvaluation(backend, world_size, DataOf(size), EvaluateByTrainer);
    ASSERT_THAT(ranks, IsOk());
    ASSERT_THAT(*ranks, SizeIs(world_size));
    EXPECT_THAT(CheckEvaluation(want, *ranks), IsOk()) << size << " samples";
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationEquivalenceTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses),
                                          testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

// The controls, at every number of ranks above one.
class EvaluationControlTest : public testing::TestWithParam<int> {
 protected:
  void ExpectRejected(int64_t size, const Evaluator& evaluate,
                      const std::string& says) {
    const auto ranks =
        RunEvaluation(Backend::kThreads, GetParam(), DataOf(size), evaluate);
    ASSERT_THAT(ranks, IsOk());
    EXPECT_THAT(CheckEvaluation(OneRank(size), *ranks),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(says)))
        << size << " samples";
  }
};

TEST_P(EvaluationControlTest, RejectsRanksThatReportTheirOwnShare) {
  ExpectRejected(kManySamples, ReportOwnShare, "not reduced over the ranks?");
  ExpectRejected(1, ReportOwnShare, "not reduced over the ranks?");
}

TEST_P(EvaluationControlTest, RejectsAPaddedSampler) {
  const int world_size = GetParam();
  for (const int64_t size : kSizes) {
    const int64_t extra = (world_size - size % world_size) % world_size;
    if (extra == 0) continue;
    ExpectRejected(size, PadSampler,
                   absl::StrCat(extra, " count twice, those of a padded"));
  }
}

TEST_P(EvaluationControlTest, RejectsADroppedPartialBatch) {
  for (const int64_t size : kSizes) {
    ExpectRejected(size, DropPartialBatch,
                   absl::StrCat(size % kBatch, " are left out"));
  }
}

TEST_P(EvaluationControlTest, RejectsAMeanOfMeansOverUnevenRanks) {
  for (const int64_t size : kSizes) {
    const bool empty_ranks = size <= (GetParam() - 1) * kBatch;
    ExpectRejected(size, AverageRanksMeans,
                   empty_ranks ? "loss is nan, the mean of a rank without"
                               : "so a mean of the ranks' means");
  }
}

TEST_P(EvaluationControlTest, RejectsAMeanOfAccuraciesOverUnevenRanks) {
  ExpectRejected(kManySamples, AverageRanksAccuracies, "accuracy is 0.");
}

INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationControlTest,
                         testing::Values(2, 3, 4, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// Whether the last bits of a float64 sum are right is chance: at about one
// world size in three they are not. Which ones depends on the last bits of the
// losses, so on the machine; hence several draws, until one shows it. On the
// machine that kDraw was chosen on, it is the first.
TEST(EvaluationPlainSumTest, IsRejectedAtSomeWorldSizeAsRounding) {
  int rejected = 0;
  for (uint32_t draw = kDraw; rejected == 0 && draw < kDraw + 12; ++draw) {
    const Evaluation want = ComputeOneRank(kManySamples, draw);
    for (const int world_size : {1, 2, 3, 4, 8}) {
      const auto ranks = RunEvaluation(Backend::kThreads, world_size,
                                       DataOf(kManySamples), SumPlainly, draw);
      ASSERT_THAT(ranks, IsOk());
      const absl::Status verdict = CheckEvaluation(want, *ranks);
      if (verdict.ok()) continue;
      ++rejected;
      EXPECT_THAT(verdict,
                  StatusIs(absl::StatusCode::kDataLoss,
                           HasSubstr("within rounding, so float64 sums")));
      // Where a plain sum shows, the trainer is right.
      const auto trainers =
          RunEvaluation(Backend::kThreads, world_size, DataOf(kManySamples),
                        EvaluateByTrainer, draw);
      ASSERT_THAT(trainers, IsOk());
      EXPECT_THAT(CheckEvaluation(want, *trainers), IsOk());
    }
  }
  RecordProperty("rejected_of_five", rejected);
  EXPECT_GT(rejected, 0);
}

}  // namespace
}  // namespace lockstep
