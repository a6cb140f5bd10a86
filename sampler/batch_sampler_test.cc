// BatchSampler over each kind of sampler.
#include "sampler/batch_sampler.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/distributed_sampler.h"
#include "sampler/paddle_sampler.h"
#include "sampler/sampler.h"
#include "sampler/sampler_state.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Batches = std::vector<std::vector<int64_t>>;

absl::StatusOr<BatchSampler> Create(const DistributedSamplerOptions& options,
                                    const BatchSamplerOptions& batches) {
  return BatchSampler::Create(std::make_unique<DistributedSampler>(
                                  DistributedSampler::Create(options).value()),
                              batches);
}

Batches Rest(BatchSampler& sampler) {
  Batches batches;
  while (const std::optional<std::span<const int64_t>> batch =
             sampler.NextBatch()) {
    batches.emplace_back(batch->begin(), batch->end());
  }
  return batches;
}

Batches Epoch(BatchSampler& sampler) {
  EXPECT_THAT(sampler.BeginEpoch(), IsOk());
  return Rest(sampler);
}

TEST(BatchSamplerTest, CutsAnEpochAndKeepsOrDropsTheRest) {
  const DistributedSamplerOptions options = {.dataset_size = 7,
                                             .shuffle = false};
  absl::StatusOr<BatchSampler> keeps = Create(options, {.batch_size = 3});
  ASSERT_THAT(keeps, IsOk());
  EXPECT_EQ(keeps->num_batches(), 3);
  EXPECT_THAT(Epoch(*keeps), ElementsAre(ElementsAre(0, 1, 2),
                                         ElementsAre(3, 4, 5), ElementsAre(6)));
  absl::StatusOr<BatchSampler> drops =
      Create(options, {.batch_size = 3, .drop_last = true});
  ASSERT_THAT(drops, IsOk());
  EXPECT_EQ(drops->num_batches(), 2);
  EXPECT_THAT(Epoch(*drops),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

TEST(BatchSamplerTest, TakesAsManyStepsOnAShortOrEmptyRank) {
  DistributedSamplerOptions options = {.dataset_size = 3,
                                       .world_size = 2,
                                       .rank = 1,
                                       .shuffle = false,
                                       .tail = Tail::kKeep};
  absl::StatusOr<BatchSampler> sampler = Create(options, {.batch_size = 1});
  ASSERT_THAT(sampler, IsOk());
  EXPECT_THAT(Epoch(*sampler), ElementsAre(ElementsAre(1), IsEmpty()));
  options.dataset_size = 1;
  sampler = Create(options, {.batch_size = 5});
  ASSERT_THAT(sampler, IsOk());
  EXPECT_THAT(Epoch(*sampler), ElementsAre(IsEmpty()));
}

TEST(BatchSamplerTest, RefusesNoBatchSizeAndAnEmptyEpoch) {
  const DistributedSamplerOptions options = {.dataset_size = 7,
                                             .world_size = 2};
  for (const int64_t size : {0, -1}) {
    EXPECT_THAT(Create(options, {.batch_size = size}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("batch_size is")));
  }
  EXPECT_THAT(
      Create(options, {.batch_size = 5, .drop_last = true}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("drop_last leaves no batch: a rank has 4 samples")));
  EXPECT_THAT(Create(options, {.batch_size = 4, .drop_last = true}), IsOk());
}

TEST(BatchSamplerTest, HasNoBatchBeforeTheEpochIsBegun) {
  absl::StatusOr<BatchSampler> sampler =
      Create({.dataset_size = 4}, {.batch_size = 2});
  ASSERT_THAT(sampler, IsOk());
  EXPECT_EQ(sampler->NextBatch(), std::nullopt);
  EXPECT_THAT(Epoch(*sampler), testing::SizeIs(2));
  EXPECT_THAT(sampler->BeginEpoch(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call SetEpoch")));
  EXPECT_EQ(sampler->State().value().visited, 4);  // The place is kept.
  sampler->SetEpoch(1);
  EXPECT_EQ(sampler->NextBatch(), std::nullopt);
  EXPECT_THAT(Epoch(*sampler), testing::SizeIs(2));
}

TEST(BatchSamplerTest, GoesOnWhereItStopped) {
  const DistributedSamplerOptions options = {.dataset_size = 20,
                                             .world_size = 2};
  absl::StatusOr<BatchSampler> whole = Create(options, {.batch_size = 3});
  ASSERT_THAT(whole, IsOk());
  whole->SetEpoch(3);
  ASSERT_THAT(whole->BeginEpoch(), IsOk());
  ASSERT_TRUE(whole->NextBatch());
  const absl::StatusOr<SamplerState> state = whole->State();
  ASSERT_THAT(state, IsOk());
  absl::StatusOr<BatchSampler> resumed = Create(options, {.batch_size = 3});
  ASSERT_THAT(resumed, IsOk());
  ASSERT_THAT(resumed->Restore(*state), IsOk());
  EXPECT_EQ(resumed->epoch(), 3);
  EXPECT_EQ(resumed->num_batches(), 3);
  EXPECT_EQ(Epoch(*resumed), Rest(*whole));
  // What was drawn since counts from the same start.
  EXPECT_EQ(resumed->State().value(), whole->State().value());
}

TEST(BatchSamplerTest, RefusesBatchesThatPaddleDoesNotDeal) {
  const auto create = [](int64_t batch_size) {
    return BatchSampler::Create(
        std::make_unique<PaddleSampler>(
            PaddleSampler::Create({.dataset_size = 10, .batch_size = 4})
                .value()),
        {.batch_size = batch_size});
  };
  EXPECT_THAT(create(3), StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("batch_size of 4")));
  EXPECT_THAT(create(4), IsOk());
  EXPECT_THAT(create(8), IsOk());
}

TEST(BatchSamplerTest, CutsPaddlesBatches) {
  absl::StatusOr<PaddleSampler> paddle = PaddleSampler::Create(
      {.dataset_size = 10, .world_size = 2, .rank = 1, .batch_size = 2});
  ASSERT_THAT(paddle, IsOk());
  absl::StatusOr<BatchSampler> sampler = BatchSampler::Create(
      std::make_unique<PaddleSampler>(*std::move(paddle)), {.batch_size = 2});
  ASSERT_THAT(sampler, IsOk());
  EXPECT_THAT(Epoch(*sampler), ElementsAre(ElementsAre(2, 3), ElementsAre(6, 7),
                                           ElementsAre(9)));
}

}  // namespace
}  // namespace lockstep
