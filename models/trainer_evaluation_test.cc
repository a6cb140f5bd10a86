// What a trainer evaluates, on which ranks, and with which buffers.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/testing/counting_model.h"
#include "models/trainer.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAreArray;

constexpr int64_t kSamples = 13;
using Batches = std::vector<std::vector<int64_t>>;

// Also that the batches are those of one rank.
TEST(TrainerEvaluationTest, EvaluatesEverySampleExactlyOnce) {
  constexpr int64_t kBatch = Trainer::kEvaluationBatch;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{7}, kBatch,
                             kBatch + 1, 9 * kBatch + 78}) {
    const Dataset test = NumberedDataset(size);
    const Dataset train = NumberedDataset(1);
    Batches want;
    for (int64_t i = 0; i < size; ++i) {
      if (i % kBatch == 0) want.emplace_back();
      want.back().push_back(i);
    }
    for (int world_size = 1; world_size <= 4; ++world_size) {
      std::vector<Batches> evaluated(world_size);
      EXPECT_THAT(
          RunRanks(Backend::kThreads, world_size,
                   [&](Communicator& communicator) -> absl::Status {
                     CountingModel model;
                     LOCKSTEP_ASSIGN_OR_RETURN(
                         const std::unique_ptr<Trainer> trainer,
                         Trainer::Create(communicator, model, train, {}));
                     LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                                               trainer->Evaluate(test));
                     evaluated[communicator.rank()] = model.evaluated();
                     return metrics.samples == size &&
                                    metrics.correct == (size + 1) / 2
                                ? absl::OkStatus()
                                : absl::InternalError("wrong metrics");
                   }),
          Each(IsOk()));
      Batches got;
      for (const Batches& batches : evaluated) {
        // No rank has more than one batch beyond its share.
        EXPECT_LE(batches.size(), want.size() / world_size + 1);
        got.insert(got.end(), batches.begin(), batches.end());
      }
      EXPECT_EQ(got, want);
    }
  }
}

// Writes down the buffers that it evaluates with.
class BufferReadingModel : public CountingModel {
 public:
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    evaluated_with.push_back(State());
    return CountingModel::Evaluate(batch);
  }

  std::vector<double> State() {
    return {buffers().floats()[0], buffers().floats()[1],
            static_cast<double>(buffers().counters()[0])};
  }

  std::vector<std::vector<double>> evaluated_with;
};

TEST(TrainerEvaluationTest,
     EvaluatesWithTheBuffersOfRankZeroAndLeavesThemOnEveryRank) {
  constexpr int kRanks = 3;
  const Dataset train = NumberedDataset(kSamples);
  const Dataset test = NumberedDataset(3 * Trainer::kEvaluationBatch);
  struct Run {
    std::vector<double> created;
    std::vector<double> trained;
    std::vector<double> left;
    std::vector<std::vector<double>> evaluated_with;
  };
  std::vector<Run> runs(kRanks);
  const auto rank_run = [&](Communicator& communicator) -> absl::Status {
    Run& run = runs[communicator.rank()];
    BufferReadingModel model;
    model.buffers().floats()[0] = 10.0f * (1.0f + communicator.rank());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(communicator, model, train, {.batch_size = 4}));
    run.created = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, {}).status());
    run.trained = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->Evaluate(test).status());
    run.left = model.State();
    run.evaluated_with = model.evaluated_with;
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, kRanks, rank_run), Each(IsOk()));
  const Run& first = runs[0];
  EXPECT_EQ(first.created, std::vector<double>({10, 0, 0}));
  for (int rank = 0; rank < kRanks; ++rank) {
    const Run& run = runs[rank];
    EXPECT_EQ(run.created, first.created);
    EXPECT_EQ(run.left, first.trained);
    EXPECT_THAT(run.evaluated_with, ElementsAreArray({first.trained}));
    // Else there would have been nothing to broadcast.
    if (rank > 0) {
      EXPECT_NE(run.trained, first.trained);
    }
  }
}

}  // namespace
}  // namespace lockstep
