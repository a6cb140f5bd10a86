// Tests the indices that samplers draw, their states as JSON, the batches that
// are cut from the indices, and the options and error checks of both samplers.
#include "sampler/sampler.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/batch_sampler.h"
#include "sampler/distributed_sampler.h"
#include "sampler/keyed_permutation.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

auto Invalid(const std::string& what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

std::vector<int64_t> Read(const EpochIndices& indices, int64_t first,
                          int64_t count) {
  std::vector<int64_t> out(count);
  indices.Read(first, out);
  return out;
}

TEST(EpochIndicesTest, ReadsAListOrStridedPositionsInParts) {
  EpochIndices list(std::vector<int64_t>{5, 3, 9});
  EXPECT_EQ(list.size(), 3);
  EXPECT_THAT(Read(list, 1, 2), ElementsAre(3, 9));
  EXPECT_THAT(Read(list, 3, 0), ElementsAre());
  EXPECT_THAT(std::move(list).TakeAll().value(), ElementsAre(5, 3, 9));
  EpochIndices padded(StridedPart{
      .begin = 10, .length = 5, .first = 1, .stride = 3, .count = 4});
  EXPECT_EQ(padded.size(), 4);
  EXPECT_THAT(Read(padded, 2, 1), ElementsAre(12));
  EXPECT_THAT(std::move(padded).TakeAll().value(), ElementsAre(11, 14, 12, 10));
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

// Earlier releases wrote these texts, so they may never change.
TEST(SamplerStateTest, IsThisTextForEver) {
  SamplerState state = {.order = "11 samples in order",
                        .epoch = 3,
                        .first_world_size = 2,
                        .before = 4,
                        .world_size = 5,
                        .batch_size = 6,
                        .visited = 7};
  EXPECT_EQ(ToJson(state), kState);
  EXPECT_THAT(SamplerStateFromJson(kState), IsOkAndHolds(state));
  state.order = "11 samples \"in order\"";
  state.visited = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ToJson(state), Not(HasSubstr("\n")));
  EXPECT_THAT(SamplerStateFromJson(ToJson(state)), IsOkAndHolds(state));
}

TEST(SamplerStateTest, NamesTheKeyThatIsMissingOrNoInt64) {
  const std::pair<const char*, const char*> values[] = {
      {"order", "\"11 samples in order\""},
      {"epoch", "3"},
      {"first_world_size", "2"},
      {"before", "4"},
      {"world_size", "5"},
      {"batch_size", "6"},
      {"visited", "7"}};
  for (const auto& [key, value] : values) {
    const std::string quoted = absl::StrCat("\"", key, "\":");
    for (const char* wrong : {"", "[0]", "null", "0.5", "1.5", "1e3", "1e30",
                              "9223372036854775808"}) {
      const std::string json = absl::StrReplaceAll(
          kState, {{quoted + value, *wrong == 0 ? "\"x\":0" : quoted + wrong}});
      EXPECT_THAT(SamplerStateFromJson(json),
                  Invalid(absl::StrCat("\"", key, "\"")))
          << json;
    }
  }
}

TEST(SamplerStateTest, RejectsWhatIsNoObject) {
  const std::string cut = std::string(kState).substr(0, 40);
  for (const std::string& wrong :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"),
        std::string("\"text\""), std::string("{}x"), std::string("no JSON"),
        cut, cut + "\xff"}) {
    EXPECT_THAT(SamplerStateFromJson(wrong), Invalid("not a JSON object"))
        << wrong;
  }
}

using Batches = std::vector<std::vector<int64_t>>;

absl::StatusOr<BatchSampler> Create(const DistributedSamplerOptions& options,
                                    const BatchSamplerOptions& batches) {
  return BatchSampler::Create(std::make_unique<DistributedSampler>(
                                  DistributedSampler::Create(options).value()),
                              batches);
}

Batches Epoch(BatchSampler& sampler) {
  EXPECT_THAT(sampler.BeginEpoch(), IsOk());
  Batches batches;
  while (const std::optional<std::span<const int64_t>> batch =
             sampler.NextBatch()) {
    batches.emplace_back(batch->begin(), batch->end());
  }
  return batches;
}

// conformance/sampling checks the batches themselves, and resuming.
TEST(BatchSamplerTest, RefusesNoBatchSizeAndAnEmptyEpoch) {
  const DistributedSamplerOptions options = {.dataset_size = 7,
                                             .world_size = 2};
  for (const int64_t size : {0, -1}) {
    EXPECT_THAT(Create(options, {.batch_size = size}),
                Invalid("batch_size is"));
  }
  EXPECT_THAT(Create(options, {.batch_size = 5, .drop_last = true}),
              Invalid("drop_last leaves no batch: a rank has 4 samples"));
  EXPECT_THAT(Create(options, {.batch_size = 4, .drop_last = true}), IsOk());
}

TEST(BatchSamplerTest, HasNoBatchBeforeTheEpochIsBegun) {
  BatchSampler sampler = Create({.dataset_size = 4}, {.batch_size = 2}).value();
  EXPECT_EQ(sampler.NextBatch(), std::nullopt);
  EXPECT_THAT(Epoch(sampler), testing::SizeIs(2));
  EXPECT_THAT(sampler.BeginEpoch(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call SetEpoch")));
  EXPECT_EQ(sampler.State().value().visited, 4);  // The place is unchanged.
  sampler.SetEpoch(1);
  EXPECT_EQ(sampler.NextBatch(), std::nullopt);
  EXPECT_THAT(Epoch(sampler), testing::SizeIs(2));
}

TEST(BatchSamplerTest, RefusesBatchesThatPaddleDoesNotDeal) {
  const auto create = [](int64_t batch_size) {
    return BatchSampler::Create(
        std::make_unique<PaddleSampler>(
            PaddleSampler::Create({.dataset_size = 10, .batch_size = 4})
                .value()),
        {.batch_size = batch_size});
  };
  EXPECT_THAT(create(3), Invalid("batch_size of 4"));
  EXPECT_THAT(create(4), IsOk());
  EXPECT_THAT(create(8), IsOk());
}

// Tests the options, error checks and states of DistributedSampler and
// PaddleSampler. golden_test.cc compares their draws with PyTorch's and
// Paddle's. conformance/sampling checks every small case, repeated draws and
// resuming.

DistributedSampler Make(const DistributedSamplerOptions& options) {
  absl::StatusOr<DistributedSampler> sampler =
      DistributedSampler::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
}

PaddleSampler MakePaddle(const PaddleSamplerOptions& options) {
  absl::StatusOr<PaddleSampler> sampler = PaddleSampler::Create(options);
  EXPECT_THAT(sampler, IsOk());
  return *std::move(sampler);
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
  constexpr int64_t kTooMany = int64_t{1} << 31;
  constexpr Permutation kKeyed = Permutation::kKeyed;
  const auto error = [](const DistributedSamplerOptions& options) {
    return DistributedSampler::Create(options).status();
  };
  for (const int64_t size : {int64_t{0}, int64_t{-1}, kTooMany}) {
    EXPECT_THAT(error({.dataset_size = size}),
                Invalid(absl::StrCat("dataset_size is ", size)));
  }
  EXPECT_THAT(error({.dataset_size = kTooMany, .permutation = kKeyed}), IsOk());
  EXPECT_THAT(
      error({.dataset_size = (int64_t{1} << 62) + 1, .permutation = kKeyed}),
      Invalid("dataset_size is 4611686018427387905"));
  for (const int ranks : {0, -1}) {
    EXPECT_THAT(error({.dataset_size = 3, .world_size = ranks}),
                Invalid(absl::StrCat("world_size is ", ranks)));
  }
  EXPECT_THAT(error({.dataset_size = 3, .world_size = 4, .tail = Tail::kDrop}),
              Invalid("drop_last leaves no sample"));
  EXPECT_THAT(error({.dataset_size = 4, .world_size = 4, .tail = Tail::kDrop}),
              IsOk());
  for (const int rank : {-1, 4, std::numeric_limits<int>::max()}) {
    EXPECT_THAT(error({.dataset_size = 4, .world_size = 4, .rank = rank}),
                Invalid(absl::StrCat("rank is ", rank)));
  }
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

TEST(DistributedSamplerTest, RefusesASecondDrawWithoutSetEpochIfShuffled) {
  DistributedSampler sampler = Make({.dataset_size = 20});
  sampler.SetEpoch(4);
  EXPECT_THAT(sampler.Indices(), IsOk());
  EXPECT_THAT(sampler.Indices(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("epoch 4 is drawn a second time: call "
                                 "SetEpoch")));
  sampler.SetEpoch(4);  // The repeated epoch is intended.
  EXPECT_THAT(sampler.Indices(), IsOk());
  DistributedSampler plain = Make({.dataset_size = 20, .shuffle = false});
  EXPECT_EQ(plain.Indices().value(), plain.Indices().value());
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

TEST(DistributedSamplerTest, RejectsAStateOfAnotherOrder) {
  DistributedSamplerOptions options = {.dataset_size = 11, .seed = 5};
  const SamplerState state = Make(options).StateAfter(3).value();
  EXPECT_THAT(Make(options).Restore(state), IsOk());
  options.seed = 6;
  EXPECT_THAT(Make(options).Restore(state),
              Invalid("the state is of 11 samples shuffled as PyTorch does "
                      "from seed 5, but the sampler is of 11 samples shuffled "
                      "as PyTorch does from seed 6"));
  options = {.dataset_size = 12, .seed = 5};
  EXPECT_THAT(Make(options).Restore(state), Invalid("the sampler is of 12"));
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
  state.visited = 6;  // More than are left after `before`.
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

// ExactShard, SplitBatch and GlobalBatches over all small cases.

using ShardFn = std::function<Shard(int64_t n, int64_t ranks, int64_t rank)>;

// Checks that the shards follow one another from 0 to n and, if `even`, differ
// in size by at most one.
absl::Status CheckShards(const ShardFn& shard_of, bool even = true) {
  for (int64_t n = 0; n <= 50; ++n) {
    for (int64_t ranks = 1; ranks <= 12; ++ranks) {
      int64_t next = 0;
      int64_t smallest = n;
      int64_t largest = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Shard shard = shard_of(n, ranks, rank);
        if (shard.begin != next || shard.end < shard.begin) {
          return absl::DataLossError(absl::StrCat(
              "gap or overlap: n=", n, " P=", ranks, " rank=", rank));
        }
        next = shard.end;
        smallest = std::min(smallest, shard.size());
        largest = std::max(largest, shard.size());
      }
      if (next != n || (even && largest - smallest > 1)) {
        return absl::DataLossError(
            absl::StrCat("uneven or incomplete: n=", n, " P=", ranks));
      }
    }
  }
  return absl::OkStatus();
}

TEST(ExactShardTest, CoversEverySampleOnceAndEvenly) {
  EXPECT_THAT(CheckShards(ExactShard), IsOk());
}

TEST(ExactShardTest, DividesTheTestSetOfFashionMnist) {
  EXPECT_EQ(ExactShard(10000, 3, 0), (Shard{0, 3334}));
  EXPECT_EQ(ExactShard(10000, 3, 1), (Shard{3334, 6667}));
  EXPECT_EQ(ExactShard(10000, 3, 2), (Shard{6667, 10000}));
}

// The controls: padding, dropped samples, and one shard for all ranks.
TEST(ExactShardTest, CheckRejectsOtherShards) {
  const auto padded = [](int64_t n, int64_t ranks, int64_t rank) {
    const int64_t size = (n + ranks - 1) / ranks;
    return Shard{rank * size, (rank + 1) * size};
  };
  const auto dropped = [](int64_t n, int64_t ranks, int64_t rank) {
    return Shard{rank * (n / ranks), (rank + 1) * (n / ranks)};
  };
  const auto same = [](int64_t n, int64_t ranks, int64_t) {
    return ExactShard(n, ranks, 0);
  };
  for (const auto& [shards, message] :
       {std::pair<ShardFn, const char*>(padded, "uneven or incomplete"),
        {dropped, "uneven or incomplete"},
        {same, "overlap"}}) {
    EXPECT_THAT(CheckShards(shards),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  }
}

std::vector<int64_t> Sizes(int64_t n, int64_t world_size) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    sizes.push_back(SplitBatch(n, world_size, rank).size());
  }
  return sizes;
}

// The expected sizes are [t.numel() for t in
// torch.arange(n).chunk(world_size)], padded with zeros.
TEST(SplitBatchTest, CutsAsTorchChunkDoes) {
  EXPECT_THAT(Sizes(10, 4), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(Sizes(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(Sizes(6, 4), ElementsAre(2, 2, 2, 0));
  EXPECT_THAT(Sizes(256, 3), ElementsAre(86, 86, 84));
  EXPECT_THAT(Sizes(9, 8), ElementsAre(2, 2, 2, 2, 1, 0, 0, 0));
  EXPECT_THAT(Sizes(1, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(Sizes(0, 2), ElementsAre(0, 0));
}

TEST(SplitBatchTest, IsAPartitionInRankOrder) {
  EXPECT_THAT(CheckShards(SplitBatch, /*even=*/false), IsOk());
}

// A case of GlobalBatches, which is compared with a list of the positions.
struct Case {
  int64_t total;
  int64_t batch_size;
  int ranks;
};

using SliceFn = std::function<BatchSlice(
    const Case& c, const GlobalBatches& batches, int rank, int64_t batch)>;

// Checks that the ranks' slices of each batch contain each of its positions
// exactly once.
absl::Status CheckCase(const Case& c, const SliceFn& slice_of) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const GlobalBatches batches,
      GlobalBatches::Create(c.total, c.batch_size, c.ranks));
  if (batches.num_batches() != (c.total + c.batch_size - 1) / c.batch_size) {
    return absl::DataLossError("wrong number of batches");
  }
  for (int64_t k = 0; k < batches.num_batches(); ++k) {
    std::vector<int64_t> positions;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const BatchSlice slice = slice_of(c, batches, rank, k);
      for (int64_t j = slice.begin; j < slice.end; ++j) {
        positions.push_back(rank + j * c.ranks);
      }
    }
    std::sort(positions.begin(), positions.end());
    const int64_t first = k * c.batch_size;
    std::vector<int64_t> want(std::min(c.batch_size, c.total - first));
    std::iota(want.begin(), want.end(), first);
    if (positions != want || batches.CountInBatch(k) != std::ssize(want)) {
      return absl::DataLossError(
          absl::StrCat("wrong positions in batch ", k, ": total=", c.total,
                       " B=", c.batch_size, " P=", c.ranks));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAll(const SliceFn& slice_of) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t batch_size = 1; batch_size <= 43; ++batch_size) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        LOCKSTEP_RETURN_IF_ERROR(
            CheckCase({total, batch_size, ranks}, slice_of));
      }
    }
  }
  return absl::OkStatus();
}

auto WrongPositions() {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong positions"));
}

TEST(GlobalBatchTest, RanksTogetherHoldExactlyThePositionsOfTheBatch) {
  const auto ours = [](const Case&, const GlobalBatches& batches, int rank,
                       int64_t k) { return batches.SliceOf(rank, k); };
  EXPECT_THAT(CheckAll(ours), IsOk());
  EXPECT_THAT(CheckCase({60000, 256, 2}, ours), IsOk());  // Fashion-MNIST.
}

// The usual way to cut a rank's list is correct only if P divides B.
TEST(GlobalBatchTest, CheckRejectsEqualPartsOnEveryRank) {
  const auto equal = [](const Case& c, const GlobalBatches& batches, int rank,
                        int64_t k) {
    const int64_t part = (c.batch_size + c.ranks - 1) / c.ranks;
    BatchSlice slice{k * part, (k + 1) * part};
    if (k + 1 == batches.num_batches()) slice = batches.SliceOf(rank, k);
    return slice;
  };
  EXPECT_THAT(CheckCase({40, 8, 4}, equal), IsOk());
  EXPECT_THAT(CheckCase({40, 9, 4}, equal), WrongPositions());
}

TEST(GlobalBatchTest, CheckRejectsAnotherRanksSliceAndADroppedLastBatch) {
  const auto another = [](const Case&, const GlobalBatches& batches, int,
                          int64_t k) { return batches.SliceOf(0, k); };
  EXPECT_THAT(CheckAll(another), WrongPositions());
  const auto dropped = [](const Case&, const GlobalBatches& batches, int rank,
                          int64_t k) {
    return k + 1 == batches.num_batches() ? BatchSlice{}
                                          : batches.SliceOf(rank, k);
  };
  EXPECT_THAT(CheckAll(dropped), WrongPositions());
}

TEST(GlobalBatchTest, BatchBeyondTheEpochIsTheEpoch) {
  auto batches =
      GlobalBatches::Create(10, std::numeric_limits<int64_t>::max(), 3);
  ASSERT_THAT(batches, IsOk());
  EXPECT_EQ(batches->num_batches(), 1);
  EXPECT_EQ(batches->CountInBatch(0), 10);
  EXPECT_EQ(batches->SliceOf(0, 0), (BatchSlice{0, 4}));
}

TEST(GlobalBatchTest, RejectsArgumentsOutOfRange) {
  EXPECT_THAT(GlobalBatches::Create(-1, 1, 1), Invalid("total_size is -1"));
  EXPECT_THAT(GlobalBatches::Create(1, 0, 1), Invalid("batch_size is 0"));
  EXPECT_THAT(GlobalBatches::Create(1, 1, 0), Invalid("world_size is 0"));
}

}  // namespace
}  // namespace lockstep
