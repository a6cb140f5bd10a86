// PaddleSampler's dealing, guards and states, one by one. What it draws is
// compared with Paddle's in paddle_sampler_golden_test.cc, and every small case
// is checked in conformance/sampling.
#include "sampler/paddle_sampler.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/sampler.h"
#include "sampler/sampler_state.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<int64_t>>;  // One of indices per rank.

PaddleSampler Make(const PaddleSamplerOptions& options) {
  absl::StatusOr<PaddleSampler> sampler = PaddleSampler::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
}

Lists ListsOfAllRanks(PaddleSamplerOptions options,
                      const SamplerState* state = nullptr) {
  Lists lists;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    PaddleSampler sampler = Make(options);
    if (state != nullptr) {
      EXPECT_THAT(sampler.Restore(*state), IsOk());
    }
    lists.push_back(sampler.Indices().value());
  }
  return lists;
}

auto Invalid(const std::string& what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

TEST(PaddleSamplerTest, DealsBatchesInTurnAndSplitsTheTail) {
  EXPECT_THAT(
      ListsOfAllRanks({.dataset_size = 10, .world_size = 4, .batch_size = 2}),
      ElementsAre(ElementsAre(0, 1, 8), ElementsAre(2, 3, 9),
                  ElementsAre(4, 5, 0), ElementsAre(6, 7, 1)));
}

TEST(PaddleSamplerTest, AdvancesByItself) {
  PaddleSampler sampler = Make({.dataset_size = 20, .shuffle = true});
  const std::vector<int64_t> first = sampler.Indices().value();
  const std::vector<int64_t> second = sampler.Indices().value();
  EXPECT_NE(first, second);
  EXPECT_EQ(sampler.epoch(), 1);
  sampler.SetEpoch(0);
  EXPECT_EQ(sampler.Indices().value(), first);
}

TEST(PaddleSamplerTest, RefusesASecondDrawIfToldTo) {
  PaddleSamplerOptions options = {.dataset_size = 20,
                                  .shuffle = true,
                                  .repeated_draw = RepeatedDraw::kRefuse};
  PaddleSampler sampler = Make(options);
  EXPECT_THAT(sampler.Indices(), IsOk());
  EXPECT_THAT(sampler.Indices(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("epoch 0 is drawn a second time")));
}

TEST(PaddleSamplerTest, RejectsOptionsOutOfRange) {
  const auto error = [](const PaddleSamplerOptions& options) {
    return PaddleSampler::Create(options).status();
  };
  EXPECT_THAT(error({.dataset_size = 0}), Invalid("dataset_size is 0"));
  EXPECT_THAT(
      error({.dataset_size = (int64_t{1} << 31) - 2, .world_size = 4}),
      Invalid("dataset_size is 2147483646, must be in [1, 2147483644]"));
  EXPECT_THAT(error({.dataset_size = 3, .world_size = 0}),
              Invalid("world_size is 0"));
  EXPECT_THAT(error({.dataset_size = 3, .world_size = 2, .rank = 2}),
              Invalid("rank is 2"));
  EXPECT_THAT(error({.dataset_size = 3, .batch_size = 0}),
              Invalid("batch_size is 0"));
}

TEST(PaddleSamplerTest, RejectsAnEpochThatIsNoSeed) {
  PaddleSampler sampler = Make({.dataset_size = 3, .shuffle = true});
  sampler.SetEpoch(-1);
  EXPECT_THAT(sampler.Indices(), Invalid("epoch is -1"));
  sampler.SetEpoch((int64_t{1} << 32) - 1);
  EXPECT_THAT(sampler.Indices(), IsOk());
  EXPECT_THAT(sampler.Indices(), Invalid("epoch is 4294967296"));
  EXPECT_THAT(sampler.Indices(), Invalid("epoch is 4294967296"));
  sampler.SetEpoch(-2);
  for (int draw = 0; draw < 3; ++draw) {
    EXPECT_THAT(sampler.Indices(), Invalid("epoch is -2"));
  }
}

TEST(PaddleSamplerTest, GoesOnWithOtherRanksAndOtherBatches) {
  PaddleSamplerOptions options = {
      .dataset_size = 10, .world_size = 4, .batch_size = 2};
  const SamplerState state = Make(options).StateAfter(2).value();
  EXPECT_THAT(ListsOfAllRanks(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(0),
                          ElementsAre(1)));
  // Without the padding, 8 and 9 are left.
  options.world_size = 2;
  EXPECT_THAT(ListsOfAllRanks(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9)));
  options.world_size = 3;
  EXPECT_THAT(ListsOfAllRanks(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(8)));
  options = {.dataset_size = 10, .world_size = 4, .batch_size = 1};
  EXPECT_THAT(ListsOfAllRanks(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(8),
                          ElementsAre(9)));
}

TEST(PaddleSamplerTest, RefusesAPlaceWithinABatch) {
  PaddleSampler sampler = Make(
      {.dataset_size = 10, .world_size = 2, .batch_size = 2, .shuffle = true});
  for (const int64_t place : {0, 2, 4, 5, 6}) {
    EXPECT_THAT(sampler.StateAfter(place), IsOk()) << place;
  }
  for (const int64_t place : {-1, 1, 3}) {
    EXPECT_THAT(sampler.StateAfter(place), Invalid("visited is")) << place;
  }
  SamplerState state = sampler.StateAfter(2).value();
  state.visited = 3;
  EXPECT_THAT(sampler.Restore(state), Invalid("visited is 3"));
  state.visited = 6;  // More than there is, after those before.
  state.before = 9;
  EXPECT_THAT(sampler.Restore(state),
              Invalid("visited is 6, must be in [0, 1]"));
  state.visited = 1;
  EXPECT_THAT(sampler.Restore(state), IsOk());
  EXPECT_THAT(sampler.Indices().value(), ElementsAre());
  state.first_world_size = std::numeric_limits<int>::max();
  EXPECT_THAT(sampler.Restore(state), Invalid("2147483647 ranks began"));
  state.first_world_size = 2;
  state.visited = 0;
  state.epoch = -1;
  EXPECT_THAT(sampler.Restore(state), Invalid("epoch is -1"));
}

}  // namespace
}  // namespace lockstep
