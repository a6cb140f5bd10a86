// ExactShard, SplitBatch and GlobalBatches over every small case.
#include "sampler/shard.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ShardFn = std::function<Shard(int64_t n, int64_t ranks, int64_t rank)>;

// Shards must follow one another from 0 to n and differ in size by at most one.
absl::Status CheckShards(const ShardFn& shard_of) {
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
      if (next != n || largest - smallest > 1) {
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

TEST(ExactShardTest, CheckRejectsPaddedShards) {
  const auto padded = [](int64_t n, int64_t ranks, int64_t rank) {
    const int64_t size = (n + ranks - 1) / ranks;
    return Shard{rank * size, (rank + 1) * size};
  };
  EXPECT_THAT(CheckShards(padded), StatusIs(absl::StatusCode::kDataLoss,
                                            HasSubstr("uneven or incomplete")));
}

TEST(ExactShardTest, CheckRejectsDroppedSamples) {
  const auto dropped = [](int64_t n, int64_t ranks, int64_t rank) {
    return Shard{rank * (n / ranks), (rank + 1) * (n / ranks)};
  };
  EXPECT_THAT(
      CheckShards(dropped),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("uneven or incomplete")));
}

TEST(ExactShardTest, CheckRejectsTheSameShardOnEveryRank) {
  const auto same = [](int64_t n, int64_t ranks, int64_t) {
    return ExactShard(n, ranks, 0);
  };
  EXPECT_THAT(CheckShards(same),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("overlap")));
}

TEST(ExactShardTest, DividesTheTestSetOfFashionMnist) {
  EXPECT_EQ(ExactShard(10000, 3, 0), (Shard{0, 3334}));
  EXPECT_EQ(ExactShard(10000, 3, 1), (Shard{3334, 6667}));
  EXPECT_EQ(ExactShard(10000, 3, 2), (Shard{6667, 10000}));
}

std::vector<int64_t> Sizes(int64_t n, int64_t world_size) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    sizes.push_back(SplitBatch(n, world_size, rank).size());
  }
  return sizes;
}

// [t.numel() for t in torch.arange(n).chunk(world_size)], padded with zeros.
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
  for (int64_t n = 0; n <= 40; ++n) {
    for (int64_t world_size = 1; world_size <= 12; ++world_size) {
      int64_t covered = 0;
      for (int64_t rank = 0; rank < world_size; ++rank) {
        const Shard shard = SplitBatch(n, world_size, rank);
        EXPECT_EQ(shard.begin, covered) << n << " " << world_size;
        EXPECT_GE(shard.size(), 0);
        covered = shard.end;
      }
      EXPECT_EQ(covered, n) << world_size;
    }
  }
}

// A case of GlobalBatches, which is checked against the positions written out.
struct Case {
  int64_t total;
  int64_t batch_size;
  int ranks;
};

using SliceFn = std::function<BatchSlice(
    const Case& c, const GlobalBatches& batches, int rank, int64_t batch)>;

BatchSlice OurSlice(const Case&, const GlobalBatches& batches, int rank,
                    int64_t batch) {
  return batches.SliceOf(rank, batch);
}

// The batch in which each position is found by walking the ranks' slices, or
// an error if a slice leaves its rank's list or a position is found twice.
absl::Status MarkPositions(const Case& c, const GlobalBatches& batches,
                           const SliceFn& slice_of,
                           std::vector<int64_t>& found_in) {
  for (int64_t k = 0; k < batches.num_batches(); ++k) {
    int64_t count = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const BatchSlice slice = slice_of(c, batches, rank, k);
      for (int64_t j = slice.begin; j < slice.end; ++j) {
        const int64_t position = rank + j * c.ranks;
        if (j < 0 || position >= c.total) {
          return absl::DataLossError("beyond the rank's list");
        }
        if (found_in[position] >= 0) {
          return absl::DataLossError("position in two slices");
        }
        found_in[position] = k;
        ++count;
      }
    }
    if (count != batches.CountInBatch(k)) {
      return absl::DataLossError("slices do not add up to the count");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCase(const Case& c, const SliceFn& slice_of) {
  auto batches = GlobalBatches::Create(c.total, c.batch_size, c.ranks);
  LOCKSTEP_RETURN_IF_ERROR(batches.status());
  if (batches->num_batches() != (c.total + c.batch_size - 1) / c.batch_size) {
    return absl::DataLossError("wrong number of batches");
  }
  std::vector<int64_t> found_in(c.total, -1);
  LOCKSTEP_RETURN_IF_ERROR(MarkPositions(c, *batches, slice_of, found_in));
  for (int64_t p = 0; p < c.total; ++p) {
    if (found_in[p] != p / c.batch_size) {
      return absl::DataLossError("position in the wrong batch");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAll(const SliceFn& slice_of) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t batch_size = 1; batch_size <= 43; ++batch_size) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        const Case c{total, batch_size, ranks};
        const absl::Status status = CheckCase(c, slice_of);
        if (!status.ok()) {
          return absl::Status(
              status.code(),
              absl::StrCat(std::string(status.message()), ": total=", total,
                           " B=", batch_size, " P=", ranks));
        }
      }
    }
  }
  return absl::OkStatus();
}

TEST(GlobalBatchTest, RanksTogetherHoldExactlyThePositionsOfTheBatch) {
  EXPECT_THAT(CheckAll(OurSlice), IsOk());
}

// Right while P divides B, wrong else: the usual way to cut a rank's list.
TEST(GlobalBatchTest, CheckRejectsEqualPartsOnEveryRank) {
  const auto equal = [](const Case& c, const GlobalBatches& batches, int rank,
                        int64_t k) {
    const int64_t part = (c.batch_size + c.ranks - 1) / c.ranks;
    BatchSlice slice{k * part, (k + 1) * part};
    if (k + 1 == batches.num_batches()) slice = batches.SliceOf(rank, k);
    return slice;
  };
  EXPECT_THAT(CheckCase({40, 8, 4}, equal), IsOk());
  EXPECT_THAT(CheckCase({40, 9, 4}, equal),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("count")));
}

TEST(GlobalBatchTest, CheckRejectsTheSliceOfAnotherRank) {
  const auto another = [](const Case&, const GlobalBatches& batches, int,
                          int64_t k) { return batches.SliceOf(0, k); };
  EXPECT_THAT(CheckAll(another),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("beyond")));
}

TEST(GlobalBatchTest, CheckRejectsADroppedLastBatch) {
  const auto dropped = [](const Case&, const GlobalBatches& batches, int rank,
                          int64_t k) {
    return k + 1 == batches.num_batches() ? BatchSlice{}
                                          : batches.SliceOf(rank, k);
  };
  EXPECT_THAT(CheckAll(dropped),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("count")));
}

TEST(GlobalBatchTest, LastBatchOfFashionMnistIsPartial) {
  auto batches = GlobalBatches::Create(60000, 256, 2);
  ASSERT_THAT(batches, IsOk());
  EXPECT_EQ(batches->num_batches(), 235);
  EXPECT_EQ(batches->CountInBatch(233), 256);
  EXPECT_EQ(batches->CountInBatch(234), 96);
  EXPECT_EQ(batches->SliceOf(1, 234), (BatchSlice{29952, 30000}));
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
  const auto invalid = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(GlobalBatches::Create(-1, 1, 1), invalid("total_size is -1"));
  EXPECT_THAT(GlobalBatches::Create(1, 0, 1), invalid("batch_size is 0"));
  EXPECT_THAT(GlobalBatches::Create(1, 1, 0), invalid("world_size is 0"));
}

}  // namespace
}  // namespace lockstep
