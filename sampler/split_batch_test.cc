// SplitBatch against PyTorch's chunk, and as a partition.
#include "sampler/split_batch.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

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

}  // namespace
}  // namespace lockstep
