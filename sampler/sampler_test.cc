// What samplers share: the indices that they draw, their states as JSON, and
// the batches that are cut from them.
#include "sampler/sampler.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"
#include "sampler/keyed_permutation.h"
#include "sampler/paddle_sampler.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> Read(const EpochIndices& indices, int64_t first,
                          int64_t count) {
  std::vector<int64_t> out(count);
  indices.Read(first, out);
  return out;
}

TEST(EpochIndicesTest, ReadsAListInParts) {
  EpochIndices indices(std::vector<int64_t>{5, 3, 9});
  EXPECT_EQ(indices.size(), 3);
  EXPECT_THAT(Read(indices, 1, 2), ElementsAre(3, 9));
  EXPECT_THAT(Read(indices, 3, 0), ElementsAre());
  EXPECT_THAT(std::move(indices).TakeAll().value(), ElementsAre(5, 3, 9));
}

TEST(EpochIndicesTest, ComputesPositionsAndTheirPadding) {
  EpochIndices indices(StridedPart{
      .begin = 10, .length = 5, .first = 1, .stride = 3, .count = 4});
  EXPECT_EQ(indices.size(), 4);
  EXPECT_THAT(Read(indices, 0, 4), ElementsAre(11, 14, 12, 10));
  EXPECT_THAT(Read(indices, 2, 1), ElementsAre(12));
  EXPECT_THAT(std::move(indices).TakeAll().value(),
              ElementsAre(11, 14, 12, 10));
}

TEST(EpochIndicesTest, MapsPositionsByThePermutation) {
  const KeyedPermutation permutation(100, /*seed=*/1, /*epoch=*/2);
  const StridedPart part = {.length = 100, .stride = 7, .count = 15};
  const EpochIndices indices(part, permutation);
  for (int64_t k = 0; k < part.count; ++k) {
    EXPECT_THAT(Read(indices, k, 1), ElementsAre(permutation(part.At(k))));
  }
}

TEST(EpochIndicesTest, RefusesAListBeyondMemory) {
  EXPECT_THAT(EpochIndices(StridedPart{.length = int64_t{1} << 40,
                                       .count = int64_t{1} << 40})
                  .TakeAll(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1099511627776 indices")));
}

constexpr char kState[] =
    R"({"order":"11 samples in order","epoch":3,"first_world_size":2,)"
    R"("before":4,"world_size":5,"batch_size":6,"visited":7})";

TEST(SamplerStateTest, IsThisTextForEver) {
  const absl::StatusOr<SamplerState> state = SamplerStateFromJson(kState);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(*state, (SamplerState{.order = "11 samples in order",
                                  .epoch = 3,
                                  .first_world_size = 2,
                                  .before = 4,
                                  .world_size = 5,
                                  .batch_size = 6,
                                  .visited = 7}));
  EXPECT_EQ(ToJson(*state), kState);
}

TEST(SamplerStateTest, ComesBackFromJson) {
  const SamplerState want = {.order = "11 samples \"in order\"",
                             .epoch = 3,
                             .first_world_size = 4,
                             .before = 5,
                             .world_size = 2,
                             .batch_size = 7,
                             .visited = std::numeric_limits<int64_t>::max()};
  const std::string json = ToJson(want);
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  const absl::StatusOr<SamplerState> state = SamplerStateFromJson(json);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(*state, want);
}

TEST(SamplerStateTest, NamesTheKeyThatIsMissingOrOfAnotherType) {
  for (const std::string key : {"order", "epoch", "first_world_size", "before",
                                "world_size", "batch_size", "visited"}) {
    const std::string quoted = absl::StrCat("\"", key, "\":");
    for (const std::string& wrong :
         {absl::StrReplaceAll(kState, {{quoted, "\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "[0],\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "null,\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "0.5,\"x\":"}})}) {
      EXPECT_THAT(SamplerStateFromJson(wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("\"", key, "\""))))
          << wrong;
    }
  }
}

TEST(SamplerStateTest, RejectsWhatIsNoObject) {
  const std::string cut = std::string(kState).substr(0, 40);
  for (const std::string& wrong :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"),
        std::string("\"text\""), std::string("{}x"), std::string("no JSON"),
        std::string("[1, 2]"), std::string("7"), std::string("{\"order\""), cut,
        cut + "\xff"}) {
    EXPECT_THAT(SamplerStateFromJson(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no JSON object")))
        << wrong;
  }
}

TEST(SamplerStateTest, NamesTheNumberThatNoInt64Holds) {
  for (const std::string number :
       {"1.5", "9223372036854775808", "1e3", "1e30"}) {
    for (const auto& [key, value] :
         {std::pair("\"epoch\"", "3"), std::pair("\"visited\"", "7")}) {
      const std::string wrong = absl::StrReplaceAll(
          kState,
          {{absl::StrCat(key, ":", value), absl::StrCat(key, ":", number)}});
      EXPECT_THAT(SamplerStateFromJson(wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)))
          << wrong;
    }
  }
}

std::vector<int64_t> Draw(const SplitBatchSamplerOptions& options) {
  return SplitBatchSampler::Create(options).value().Indices().value();
}

TEST(SplitBatchSamplerTest, DrawsTheRanksBlockEveryTime) {
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 0}),
              ElementsAre(0, 1));
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 2}),
              ElementsAre(4));
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 3}),
              ElementsAre());
  absl::StatusOr<SplitBatchSampler> sampler =
      SplitBatchSampler::Create({.dataset_size = 3});
  ASSERT_THAT(sampler, IsOk());
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler->SetEpoch(epoch);
    EXPECT_THAT(sampler->Indices().value(), ElementsAre(0, 1, 2));
    EXPECT_THAT(sampler->Indices().value(), ElementsAre(0, 1, 2));
  }
}

TEST(SplitBatchSamplerTest, RejectsOptionsOutOfRange) {
  const auto invalid = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(SplitBatchSampler::Create({.dataset_size = 0}),
              invalid("dataset_size is 0"));
  EXPECT_THAT(SplitBatchSampler::Create({.dataset_size = 3, .world_size = 0}),
              invalid("world_size is 0"));
  EXPECT_THAT(SplitBatchSampler::Create(
                  {.dataset_size = 3, .world_size = 2, .rank = -1}),
              invalid("rank is -1"));
}

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
