// EpochIndices in memory and computed.
#include "sampler/epoch_indices.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/keyed_permutation.h"
#include "sampler/strided_part.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

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
                       testing::HasSubstr("1099511627776 indices")));
}

}  // namespace
}  // namespace lockstep
