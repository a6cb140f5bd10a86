// The options, guards and states of DistributedSampler and PaddleSampler, one
// by one. What they draw is compared with PyTorch's and Paddle's in
// golden_test.cc, and every small case is checked in conformance/sampling.
#include "sampler/distributed_sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/paddle_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lists = std::vector<std::vector<int64_t>>;  // One of indices per rank.

template <typename S, typename Options>
S MakeSampler(const Options& options) {
  absl::StatusOr<S> sampler = S::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
}

template <typename S, typename Options>
Lists DrawAllRanks(Options options, const SamplerState* state) {
  Lists lists;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    S sampler = MakeSampler<S>(options);
    if (state != nullptr) {
      EXPECT_THAT(sampler.Restore(*state), IsOk());
    }
    lists.push_back(sampler.Indices().value());
  }
  return lists;
}

DistributedSampler Make(const DistributedSamplerOptions& options) {
  return MakeSampler<DistributedSampler>(options);
}

Lists ListsOfAllRanks(const DistributedSamplerOptions& options,
                      const SamplerState* state = nullptr) {
  return DrawAllRanks<DistributedSampler>(options, state);
}

PaddleSampler MakePaddle(const PaddleSamplerOptions& options) {
  return MakeSampler<PaddleSampler>(options);
}

Lists PaddleLists(const PaddleSamplerOptions& options,
                  const SamplerState* state = nullptr) {
  return DrawAllRanks<PaddleSampler>(options, state);
}

absl::Status ErrorOf(const DistributedSamplerOptions& options) {
  return DistributedSampler::Create(options).status();
}

auto Invalid(const std::string& what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

TEST(DistributedSamplerTest, PadsElevenSamplesToTwelveForTwoRanks) {
  EXPECT_THAT(
      ListsOfAllRanks({.dataset_size = 11, .world_size = 2, .shuffle = false}),
      ElementsAre(ElementsAre(0, 2, 4, 6, 8, 10),
                  ElementsAre(1, 3, 5, 7, 9, 0)));
}

TEST(DistributedSamplerTest, DropsTheEleventhSample) {
  EXPECT_THAT(
      ListsOfAllRanks({.dataset_size = 11,
                       .world_size = 2,
                       .shuffle = false,
                       .tail = Tail::kDrop}),
      ElementsAre(ElementsAre(0, 2, 4, 6, 8), ElementsAre(1, 3, 5, 7, 9)));
}

TEST(DistributedSamplerTest, KeepsRanksShortAndEmpty) {
  DistributedSamplerOptions options = {.dataset_size = 11,
                                       .world_size = 2,
                                       .shuffle = false,
                                       .tail = Tail::kKeep};
  EXPECT_THAT(
      ListsOfAllRanks(options),
      ElementsAre(ElementsAre(0, 2, 4, 6, 8, 10), ElementsAre(1, 3, 5, 7, 9)));
  options.dataset_size = 1;
  EXPECT_THAT(ListsOfAllRanks(options), ElementsAre(ElementsAre(0), IsEmpty()));
}

TEST(DistributedSamplerTest, CountsSayWhatRanksDraw) {
  DistributedSamplerOptions options = {
      .dataset_size = 11, .world_size = 4, .rank = 3};
  EXPECT_EQ(Make(options).Counts(), (SampleCounts{3, 3, 3}));
  options.tail = Tail::kDrop;
  EXPECT_EQ(Make(options).Counts(), (SampleCounts{2, 2, 2}));
  options.tail = Tail::kKeep;
  EXPECT_EQ(Make(options).Counts(), (SampleCounts{2, 2, 3}));
}

TEST(DistributedSamplerTest, RejectsOptionsOutOfRange) {
  DistributedSamplerOptions options;
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    options.dataset_size = size;
    EXPECT_THAT(ErrorOf(options),
                Invalid(absl::StrCat("dataset_size is ", size)));
  }
  options.permutation = Permutation::kKeyed;
  EXPECT_THAT(ErrorOf(options), IsOk());  // 2^31 samples.
  options.dataset_size = (int64_t{1} << 62) + 1;
  EXPECT_THAT(ErrorOf(options), Invalid("dataset_size is 4611686018427387905"));
  options.dataset_size = 3;
  for (const int ranks : {0, -1}) {
    options.world_size = ranks;
    EXPECT_THAT(ErrorOf(options),
                Invalid(absl::StrCat("world_size is ", ranks)));
  }
  options.world_size = 4;
  for (const int rank : {-1, 4, std::numeric_limits<int>::max()}) {
    options.rank = rank;
    EXPECT_THAT(ErrorOf(options), Invalid(absl::StrCat("rank is ", rank)));
  }
}

TEST(DistributedSamplerTest, RejectsAnEpochThatDropLastEmpties) {
  DistributedSamplerOptions options = {
      .dataset_size = 3, .world_size = 4, .tail = Tail::kDrop};
  EXPECT_THAT(ErrorOf(options), Invalid("drop_last leaves no sample"));
  options.world_size = 3;
  EXPECT_THAT(ErrorOf(options), IsOk());
}

// The sum of seed and epoch wraps instead of being undefined.
TEST(DistributedSamplerTest, SeedPlusEpochWraps) {
  DistributedSamplerOptions options = {
      .dataset_size = 20, .seed = std::numeric_limits<int64_t>::max()};
  DistributedSampler top = Make(options);
  top.SetEpoch(1);
  options.seed = 0;  // 2^63 has the same low 32 bits.
  EXPECT_EQ(top.Indices().value(), Make(options).Indices().value());
}

TEST(DistributedSamplerTest, RefusesASecondDrawWithoutSetEpoch) {
  DistributedSampler sampler = Make({.dataset_size = 20});
  sampler.SetEpoch(4);
  EXPECT_THAT(sampler.Indices(), IsOk());
  EXPECT_THAT(sampler.Indices(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("epoch 4 is drawn a second time: call "
                                 "SetEpoch")));
  sampler.SetEpoch(4);  // Meant, then.
  EXPECT_THAT(sampler.Indices(), IsOk());
}

TEST(DistributedSamplerTest, DrawsAnUnshuffledEpochAgain) {
  DistributedSampler sampler = Make({.dataset_size = 20, .shuffle = false});
  EXPECT_EQ(sampler.Indices().value(), sampler.Indices().value());
}

TEST(DistributedSamplerTest, RepeatsOrAdvancesIfToldTo) {
  DistributedSamplerOptions options = {.dataset_size = 20};
  DistributedSampler plain = Make(options);
  const std::vector<int64_t> first = plain.Indices().value();
  plain.SetEpoch(1);
  const std::vector<int64_t> second = plain.Indices().value();
  ASSERT_NE(first, second);
  options.repeated_draw = RepeatedDraw::kAllow;
  DistributedSampler repeats = Make(options);
  EXPECT_EQ(repeats.Indices().value(), first);
  EXPECT_EQ(repeats.Indices().value(), first);
  options.repeated_draw = RepeatedDraw::kAdvance;
  DistributedSampler advances = Make(options);
  EXPECT_EQ(advances.Indices().value(), first);
  EXPECT_EQ(advances.Indices().value(), second);
  EXPECT_EQ(advances.epoch(), 1);
}

TEST(DistributedSamplerTest, KeyedEpochsArePermutationsAndDiffer) {
  std::set<std::vector<int64_t>> distinct;
  for (const int64_t seed : {1, 2}) {
    for (const int64_t epoch : {0, 1}) {
      DistributedSampler sampler = Make({.dataset_size = 100,
                                         .seed = seed,
                                         .permutation = Permutation::kKeyed});
      sampler.SetEpoch(epoch);
      std::vector<int64_t> indices = sampler.Indices().value();
      distinct.insert(indices);
      std::sort(indices.begin(), indices.end());
      std::vector<int64_t> all(100);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(indices, all);
    }
  }
  EXPECT_EQ(distinct.size(), 4u);
}

TEST(DistributedSamplerTest, DrawsATrillionSamplesWithoutHoldingThem) {
  constexpr int64_t kSize = 1'000'000'000'000;
  DistributedSampler sampler = Make({.dataset_size = kSize,
                                     .world_size = 8,
                                     .rank = 3,
                                     .permutation = Permutation::kKeyed});
  const absl::StatusOr<EpochIndices> drawn = sampler.Draw();
  ASSERT_THAT(drawn, IsOk());
  EXPECT_EQ(drawn->size(), kSize / 8);
  std::vector<int64_t> last(3);
  drawn->Read(kSize / 8 - 3, last);
  for (const int64_t index : last) {
    EXPECT_TRUE(index >= 0 && index < kSize) << index;
  }
  sampler.SetEpoch(1);
  EXPECT_THAT(sampler.Indices(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("125000000000 indices")));
}

TEST(DistributedSamplerTest, GoesOnWithoutRepeatingOrLosingASample) {
  DistributedSamplerOptions options = {
      .dataset_size = 11, .world_size = 2, .shuffle = false};
  DistributedSampler sampler = Make(options);
  const absl::StatusOr<SamplerState> state = sampler.StateAfter(2);
  ASSERT_THAT(state, IsOk());
  EXPECT_THAT(ListsOfAllRanks(options, &*state),
              ElementsAre(ElementsAre(4, 6, 8, 10), ElementsAre(5, 7, 9, 0)));
  options.world_size = 3;
  EXPECT_THAT(ListsOfAllRanks(options, &*state),
              ElementsAre(ElementsAre(4, 7, 10), ElementsAre(5, 8, 4),
                          ElementsAre(6, 9, 5)));
  options.tail = Tail::kKeep;
  EXPECT_THAT(
      ListsOfAllRanks(options, &*state),
      ElementsAre(ElementsAre(4, 7, 10), ElementsAre(5, 8), ElementsAre(6, 9)));
}

TEST(DistributedSamplerTest, RejectsAStateOfAnotherOrder) {
  DistributedSamplerOptions options = {.dataset_size = 11, .seed = 5};
  const SamplerState state = Make(options).StateAfter(3).value();
  EXPECT_THAT(Make(options).Restore(state), IsOk());
  options.seed = 6;
  EXPECT_THAT(Make(options).Restore(state),
              Invalid("the state is of 11 samples shuffled as PyTorch does "
                      "from seed 5, the sampler of 11 samples shuffled as "
                      "PyTorch does from seed 6"));
  options = {.dataset_size = 12, .seed = 5};
  EXPECT_THAT(Make(options).Restore(state), Invalid("the sampler of 12"));
  options = {.dataset_size = 11, .shuffle = false};
  EXPECT_THAT(Make(options).Restore(state), Invalid("samples in order"));
  options = {.dataset_size = 11, .seed = 5, .permutation = Permutation::kKeyed};
  EXPECT_THAT(Make(options).Restore(state), Invalid("shuffled by key"));
}

TEST(DistributedSamplerTest, RejectsImpossibleStates) {
  DistributedSampler sampler = Make({.dataset_size = 11, .world_size = 2});
  const SamplerState good = sampler.StateAfter(3).value();
  const struct {
    int64_t SamplerState::*number;
    std::string says;
    std::string range;
  } numbers[] = {
      {&SamplerState::first_world_size, "first_world_size", "[1, 2147483647]"},
      {&SamplerState::before, "before", "[0, 11]"},
      {&SamplerState::world_size, "the state's world_size", "[1, 2147483647]"},
      {&SamplerState::batch_size, "batch_size", "[1, "},
      {&SamplerState::visited, "visited", "[0, 6]"},
  };
  for (const auto& [number, says, range] : numbers) {
    for (const int64_t wrong :
         {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      if (number == &SamplerState::batch_size && wrong > 0) continue;
      SamplerState bad = good;
      bad.*number = wrong;
      EXPECT_THAT(
          sampler.Restore(bad),
          Invalid(absl::StrCat(says, " is ", wrong, ", must be in ", range)));
    }
  }
  EXPECT_THAT(sampler.StateAfter(-1), Invalid("visited is -1"));
}

TEST(PaddleSamplerTest, DealsBatchesInTurnAndSplitsTheTail) {
  EXPECT_THAT(
      PaddleLists({.dataset_size = 10, .world_size = 4, .batch_size = 2}),
      ElementsAre(ElementsAre(0, 1, 8), ElementsAre(2, 3, 9),
                  ElementsAre(4, 5, 0), ElementsAre(6, 7, 1)));
}

TEST(PaddleSamplerTest, AdvancesByItself) {
  PaddleSampler sampler = MakePaddle({.dataset_size = 20, .shuffle = true});
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
  PaddleSampler sampler = MakePaddle(options);
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
  PaddleSampler sampler = MakePaddle({.dataset_size = 3, .shuffle = true});
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
  const SamplerState state = MakePaddle(options).StateAfter(2).value();
  EXPECT_THAT(PaddleLists(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(0),
                          ElementsAre(1)));
  // Without the padding, 8 and 9 are left.
  options.world_size = 2;
  EXPECT_THAT(PaddleLists(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9)));
  options.world_size = 3;
  EXPECT_THAT(PaddleLists(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(8)));
  options = {.dataset_size = 10, .world_size = 4, .batch_size = 1};
  EXPECT_THAT(PaddleLists(options, &state),
              ElementsAre(ElementsAre(8), ElementsAre(9), ElementsAre(8),
                          ElementsAre(9)));
}

TEST(PaddleSamplerTest, RefusesAPlaceWithinABatch) {
  PaddleSampler sampler = MakePaddle(
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
