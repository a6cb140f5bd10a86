// ExactShard over every small case.
#include "sampler/exact_shard.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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
  EXPECT_THAT(CheckShards(padded),
              StatusIs(absl::StatusCode::kDataLoss,
                       testing::HasSubstr("uneven or incomplete")));
}

TEST(ExactShardTest, CheckRejectsDroppedSamples) {
  const auto dropped = [](int64_t n, int64_t ranks, int64_t rank) {
    return Shard{rank * (n / ranks), (rank + 1) * (n / ranks)};
  };
  EXPECT_THAT(CheckShards(dropped),
              StatusIs(absl::StatusCode::kDataLoss,
                       testing::HasSubstr("uneven or incomplete")));
}

TEST(ExactShardTest, CheckRejectsTheSameShardOnEveryRank) {
  const auto same = [](int64_t n, int64_t ranks, int64_t) {
    return ExactShard(n, ranks, 0);
  };
  EXPECT_THAT(CheckShards(same), StatusIs(absl::StatusCode::kDataLoss,
                                          testing::HasSubstr("overlap")));
}

TEST(ExactShardTest, DividesTheTestSetOfFashionMnist) {
  EXPECT_EQ(ExactShard(10000, 3, 0), (Shard{0, 3334}));
  EXPECT_EQ(ExactShard(10000, 3, 1), (Shard{3334, 6667}));
  EXPECT_EQ(ExactShard(10000, 3, 2), (Shard{6667, 10000}));
}

}  // namespace
}  // namespace lockstep
