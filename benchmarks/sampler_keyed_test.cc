// Reading a computed epoch, and that wrong ones are seen.
#include "benchmarks/sampler_keyed.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/resident_growth.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/epoch_indices.h"

namespace lockstep {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(KeyedTest, ReadsEpochsOfEverySize) {
  for (const int64_t size : {1, 9, 8191, 8193, 1'000'000'000}) {
    const absl::StatusOr<EpochIndices> indices = DrawKeyed(size);
    ASSERT_THAT(indices, IsOk());
    EXPECT_EQ(indices->size(), (size + 7) / 8);
    EXPECT_THAT(CheckKeyed(*indices, size), IsOk());
    EXPECT_THAT(TimeKeyedBlocks(*indices, 1e-6), IsOkAndHolds(Gt(0.0)));
    EXPECT_GT(TimeKeyedIndex(*indices), 0);
  }
}

TEST(CheckKeyedTest, RejectsWhatIsNoPermutation) {
  std::vector<int64_t> list(5000);
  for (int64_t k = 0; k < 5000; ++k) list[k] = 3 * k;
  EXPECT_THAT(CheckKeyed(EpochIndices(list), 3 * 5000), IsOk());
  EXPECT_THAT(CheckKeyed(EpochIndices(list), 3 * 4999),
              StatusIs(kDataLoss, HasSubstr("is not one of")));
  list[17] = list[4711];
  EXPECT_THAT(CheckKeyed(EpochIndices(list), 3 * 5000),
              StatusIs(kDataLoss, "index 14133 comes twice"));
  list[17] = -1;
  EXPECT_THAT(CheckKeyed(EpochIndices(list), 3 * 5000),
              StatusIs(kDataLoss, HasSubstr("is not one of")));
}

// The exact number is the benchmark's; a list would take terabytes.
TEST(KeyedMemoryTest, HoldsNoList) {
  const absl::StatusOr<int64_t> memory = KeyedMemory(1'000'000'000'000);
  ASSERT_THAT(memory, IsOk());
  EXPECT_GE(*memory, 0);
  EXPECT_LT(*memory, 64 << 20);  // Under a sanitizer too.
}

// The bar is not one that everything meets.
TEST(KeyedMemoryTest, WouldSeeTwoMebibytes) {
  const absl::StatusOr<int64_t> memory =
      ResidentGrowth([] { return DrawAndReadKeyed(1000); },
                     []() -> absl::Status {
                       const std::vector<char> touched(2 << 20, 1);
                       asm volatile("" : : "r"(touched.data()) : "memory");
                       return DrawAndReadKeyed(1'000'000'000'000);
                     });
  ASSERT_THAT(memory, IsOk());
  EXPECT_GT(*memory, 1 << 20);
}

}  // namespace
}  // namespace lockstep
