// Timed draws: what they draw, and that wrong indices are seen.
#include "benchmarks/sampler_draw.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/sampler_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(DrawEpochTest, DrawsThisRanksShareAndTimesIt) {
  for (const DrawSubject subject :
       {DrawSubject::kTorch, DrawSubject::kExact, DrawSubject::kPaddle}) {
    for (const int64_t size : {1, 7, 8, 1000, 1003}) {
      const absl::StatusOr<DrawResult> result = DrawEpoch(subject, size);
      ASSERT_THAT(result, IsOk()) << Name(subject) << " " << size;
      EXPECT_GT(result->seconds, 0);
      // Rank 3: padded up, or the fourth of those that have one more.
      const int64_t rest = size % kDrawWorldSize;
      const bool more =
          subject == DrawSubject::kExact ? rest > kDrawRank : rest > 0;
      EXPECT_EQ(result->count, size / kDrawWorldSize + (more ? 1 : 0))
          << Name(subject) << " " << size;
    }
  }
}

// The CRC-32 that PyTorch's own indices have, by sampler_peer_torch.py.
TEST(DrawEpochTest, DrawsWhatPyTorchDraws) {
  const absl::StatusOr<DrawResult> result =
      DrawEpoch(DrawSubject::kTorch, 60000);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->count, 7500);
  EXPECT_EQ(result->checksum, 201234808u);
}

// "123456789" has the CRC-32 0xcbf43926; here, 8 of its characters.
TEST(IndexChecksumTest, IsTheCrcOfTheBytes) {
  EXPECT_EQ(IndexChecksum({}), 0u);
  const std::vector<int64_t> indices = {0x3837363534333231};
  EXPECT_EQ(IndexChecksum(indices), 0x9ae0daafu);
}

TEST(IndexChecksumTest, DependsOnTheOrder) {
  const std::vector<int64_t> indices = {1, 2, 3};
  const std::vector<int64_t> swapped = {1, 3, 2};
  EXPECT_NE(IndexChecksum(indices), IndexChecksum(swapped));
}

TEST(CheckIndicesTest, RejectsWhatNoEpochHas) {
  const std::vector<int64_t> fine = {3, 0, 2};
  EXPECT_THAT(CheckIndices(fine, 4, 2), IsOk());
  EXPECT_THAT(CheckIndices(fine, 3, 2),
              StatusIs(kDataLoss, HasSubstr("index 3 is not one of 3")));
  const std::vector<int64_t> negative = {-1};
  EXPECT_THAT(CheckIndices(negative, 3, 2),
              StatusIs(kDataLoss, HasSubstr("index -1")));
  const std::vector<int64_t> twice = {0, 1, 0};
  EXPECT_THAT(CheckIndices(twice, 4, 2),
              StatusIs(kDataLoss, HasSubstr("1 of 3 indices are repeated")));
  EXPECT_THAT(CheckIndices(twice, 3, 2), IsOk());  // Padding may do that.
}

}  // namespace
}  // namespace lockstep
