// Tests that N ranks compute what one rank computes: the gradient of every
// parameter, the updates, and two epochs of training, through the trainer's own
// path. Runs over threads, over processes and, through host memory, over the
// `nccl` backend, which uses the stand-in for CUDA and NCCL. If built with CUDA
// and NCCL, runs only over NCCL on GPUs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/device_mirror.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/checks.h"
#include "conformance/training/mutants.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/lenet_reference.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

constexpr int64_t kGlobalBatch = 24;
constexpr int kMaxWorldSize = 8;
constexpr float kLearningRate = 0.02f;

// Each parameter alone; some together; all at once.
constexpr int64_t kBucketBytes[] = {1, 64 << 10, 1 << 30};

using Shards = std::vector<int64_t>;  // The number of samples of each rank.

// Returns ways to deal kGlobalBatch samples to the ranks.
std::vector<Shards> ShardsOf(int world_size) {
  Shards even(world_size, kGlobalBatch / world_size);
  even[0] += kGlobalBatch % world_size;
  Shards first_has_most(world_size, 1);
  first_has_most[0] = kGlobalBatch - (world_size - 1);
  Shards second_has_most(world_size, 1);
  second_has_most[1 % world_size] = kGlobalBatch - (world_size - 1);
  Shards last_has_all(world_size, 0);
  last_has_all.back() = kGlobalBatch;
  return {even, first_has_most, second_has_most, last_has_all};
}

const Samples& GlobalBatch() {
  static const Samples& batch = *[] {
    std::vector<int64_t> all(kGlobalBatch);
    std::iota(all.begin(), all.end(), 0);
    return new Samples(GatherSamples(BlobDataset(kGlobalBatch), all));
  }();
  return batch;
}

// Returns the one-rank gradient at rank 0's start, the same in every case.
const Bounded& ReferenceGradient() {
  static const Bounded& gradient =
      *new Bounded(LeNetReference(StartOfRank(0), GlobalBatch().images,
                                  GlobalBatch().labels, kMaxWorldSize)
                       .gradient);
  return gradient;
}

Expectation OneStep() {
  return {.specs = LeNetSpecs(),
          .start = StartOfRank(0),
          .learning_rate = kLearningRate,
          .steps = {{0, 0, GlobalBatch()}},
          .reference = [](std::span<const float>, const Samples&) {
            return ReferenceGradient();
          }};
}

// The backend that connects the ranks.
enum class Carrier { kThreads, kProcesses, kNccl };

RankRunner RanksOver(Carrier carrier) {
  switch (carrier) {
    case Carrier::kThreads:
      return RanksOf(Backend::kThreads);
    case Carrier::kProcesses:
      return RanksOf(Backend::kProcesses);
    case Carrier::kNccl:
      break;
  }
  return StagedNcclRanks(NcclOptions());
}

std::string BackendName(Carrier carrier, int world_size) {
  if (carrier == Carrier::kThreads) return "threads";
  if (carrier == Carrier::kProcesses) return "processes";
  return absl::StrCat(NcclBackendName(world_size), ", staged");
}

// Runs one training step on ranks with different initial parameters. A `scale`
// other than 1 plants a mutant: gradients are too large by that factor.
absl::StatusOr<std::vector<RankTrace>> RunStep(Carrier carrier,
                                               const Shards& shards,
                                               int64_t bucket_bytes,
                                               float scale = 1) {
  const auto step = [&](Communicator& group, RecordingModel& model) {
    LOCKSTEP_RETURN_IF_ERROR(BroadcastParameters(group, model.parameters()));
    GradientReducer reducer(group, model.parameters(), bucket_bytes);
    const auto first = shards.begin();
    const int64_t begin =
        std::accumulate(first, first + group.rank(), int64_t{0});
    const int64_t count = shards[group.rank()];
    const Batch shard = {
        std::span(GlobalBatch().images)
            .subspan(begin * kLeNetPixels, count * kLeNetPixels),
        std::span(GlobalBatch().labels).subspan(begin, count)};
    return TrainStep(model, reducer, shard,
                     static_cast<int64_t>(kGlobalBatch / scale), kLearningRate)
        .status();
  };
  return RecordRanks(RanksOver(carrier), static_cast<int>(shards.size()), step);
}

// Returns the largest |bound| / |gradient| over the tensors, in norm; infinity
// if a tensor's gradient is too small for its absence to show.
double WorstRelativeBound(const Bounded& gradient) {
  double worst = 0;
  for (const ParameterSpec& spec : LeNetSpecs()) {
    const double value =
        Norm(std::span(gradient.value).subspan(spec.offset, spec.size));
    const double bound =
        Norm(std::span(gradient.bound).subspan(spec.offset, spec.size));
    worst = std::max(worst, value > 1e-3 ? bound / value : HUGE_VAL);
  }
  return worst;
}

// Returns options for the trainer: four steps, or ten in exhaustive runs.
RunOptions TwoEpochs() {
  RunOptions options;
  if (!IsExhaustive()) return options;
  options.dataset_size = 71;
  options.trainer.batch_size = 17;
  return options;
}

using Case = std::tuple<Carrier, int>;

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"Threads", "Processes", "Nccl"};
  return absl::StrCat(kNames[static_cast<int>(std::get<0>(info.param))], "P",
                      std::get<1>(info.param));
}

// Returns the cases with world sizes from `fewest` on.
std::vector<Case> Cases(int fewest) {
  std::vector<Case> cases;
  const auto add = [&](Carrier carrier, const std::vector<int>& world_sizes) {
    for (const int world_size : world_sizes) {
      if (world_size >= fewest) cases.push_back({carrier, world_size});
    }
  };
  if (kOnStandin) {
    for (const Carrier carrier : {Carrier::kThreads, Carrier::kProcesses}) {
      add(carrier, {1, 2, 3, 4, 8});
    }
  }
  add(Carrier::kNccl, NcclWorldSizes({1, 2, 3}));
  return cases;
}

bool HasRanks(Carrier carrier) {
  return carrier != Carrier::kNccl || HasNcclRanks();
}

class GradientEquivalenceTest : public testing::TestWithParam<Case> {
 protected:
  // Returns the cell of the claim that the test's parameter stands for.
  static ClaimCellId PlaceOf(const char* claim) {
    const auto [carrier, world_size] = GetParam();
    return {claim, BackendName(carrier, world_size), world_size, "float32"};
  }

  // Expects that the ranks trained as `want`, and records the largest error.
  static void ExpectSameTraining(Expectation want,
                                 const std::vector<RankTrace>& ranks,
                                 const std::string& what,
                                 ClaimRecorder& recorder) {
    double largest = 0;
    want.measure = [&](double error) { largest = std::max(largest, error); };
    EXPECT_THAT(CheckSameTraining(want, ranks), IsOk()) << what;
    recorder.Measure(largest);
  }
};

TEST_P(GradientEquivalenceTest, OneStepMatchesOneRankHoweverSamplesAreDealt) {
  const auto [carrier, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("gradients"));
  if (!HasRanks(carrier)) return;
  ASSERT_GT(Norm(ReferenceGradient().value), 0.1);
  ASSERT_LT(WorstRelativeBound(ReferenceGradient()), 0.01);
  const Expectation want = OneStep();
  std::vector<std::pair<Shards, int64_t>> deals;
  for (const Shards& shards : ShardsOf(world_size)) {
    for (const int64_t bytes : kBucketBytes) deals.push_back({shards, bytes});
  }
  for (const auto& [shards, bucket_bytes] : SliceOf(deals, 4, world_size)) {
    const auto ranks = RunStep(carrier, shards, bucket_bytes);
    ASSERT_THAT(ranks, IsOk());
    ExpectSameTraining(want, *ranks,
                       absl::StrCat("shards ", absl::StrJoin(shards, ","),
                                    ", buckets of ", bucket_bytes, " bytes"),
                       recorder);
  }
}

TEST_P(GradientEquivalenceTest, TwoEpochsMatchOneRank) {
  const auto [carrier, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("training_steps"));
  if (!HasRanks(carrier)) return;
  for (const Sharding sharding : {Sharding::kStrided, Sharding::kContiguous}) {
    // Contiguous sharding is DataParallel's split, whose ranks are threads.
    if (sharding == Sharding::kContiguous && carrier != Carrier::kThreads) {
      continue;
    }
    RunOptions options = TwoEpochs();
    options.run = RanksOver(carrier);
    options.world_size = world_size;
    options.trainer.sharding = sharding;
    const auto ranks = RecordTraining(options, Mutation());
    ASSERT_THAT(ranks, IsOk());
    const Expectation want = OneRank(options);
    ASSERT_EQ(want.steps.size(), IsExhaustive() ? 10 : 4);
    ExpectSameTraining(want, *ranks, "two epochs", recorder);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientEquivalenceTest,
                         testing::ValuesIn(Cases(1)), CaseName);

// The control at every world size. mutants/ plants all mutants, over threads.
class GradientControlTest : public testing::TestWithParam<Case> {};

TEST_P(GradientControlTest, RejectsSumInPlaceOfMean) {
  const auto [carrier, world_size] = GetParam();
  if (!HasRanks(carrier)) return;
  const auto ranks = RunStep(carrier, ShardsOf(world_size)[0], 64 << 10,
                             static_cast<float>(world_size));
  ASSERT_THAT(ranks, IsOk());
  EXPECT_THAT(CheckSameTraining(OneStep(), *ranks),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the world size: summed, not averaged?")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientControlTest,
                         testing::ValuesIn(Cases(2)), CaseName);

// The mutants over NCCL: all of them on GPUs, some on the stand-in.
class NcclTrainingMutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(NcclTrainingMutantTest, IsRejected) {
  if (!HasNcclRanks()) return;
  EXPECT_THAT(PlantAndExpectCaught(GetParam()), IsOk());
}

std::vector<Mutant> PlantedMutants() {
  std::vector<Mutant> all = TrainingMutants(RanksOver(Carrier::kNccl)).mutants;
  return kOnStandin ? SliceOf(std::move(all), 8) : all;
}

INSTANTIATE_TEST_SUITE_P(Mutants, NcclTrainingMutantTest,
                         testing::ValuesIn(PlantedMutants()),
                         [](const auto& info) { return info.param.name; });

// A check accepts anything if its tolerance is as large as the compared value.
// Here, in each step, the tolerance is below a hundredth of the gradient in
// norm, and below a fiftieth of each tensor's gradient.
TEST(GradientToleranceTest, IsSmallInEveryStep) {
  const RunOptions options = TwoEpochs();
  const auto ranks = RecordTraining(options, Mutation());
  ASSERT_THAT(ranks, IsOk());
  const Expectation want = OneRank(options);
  ASSERT_EQ(want.steps.size(), IsExhaustive() ? 10 : 4);
  double worst = 0, worst_tensor = 0;
  for (size_t s = 0; s < want.steps.size(); ++s) {
    const Bounded gradient =
        want.reference((*ranks)[0].parameters[s], want.steps[s].samples);
    EXPECT_GT(Norm(gradient.value), 0.1) << "step " << s;
    worst = std::max(worst, Norm(gradient.bound) / Norm(gradient.value));
    worst_tensor = std::max(worst_tensor, WorstRelativeBound(gradient));
  }
  RecordProperty("worst_relative_bound", absl::StrCat(worst));
  RecordProperty("worst_relative_bound_of_a_tensor",
                 absl::StrCat(worst_tensor));
  EXPECT_LT(worst, 0.01);
  EXPECT_LT(worst_tensor, 0.02);
}

}  // namespace
}  // namespace lockstep::conformance
