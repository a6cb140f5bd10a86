// Timed draws: what they draw, and that wrong indices are seen.
#include "benchmarks/sampler/draw.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/sampler/plan.h"
#include "benchmarks/sampler/random_updates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(DrawEpochTest, DrawsThisRanksShareAndTimesIt) {
  for (const DrawSubject subject :
       {DrawSubject::kTorch, DrawSubject::kExact, DrawSubject::kPaddle}) {
    for (const int64_t size : {1, 7, 8, 9, 17, 801, 1000, 1003, 60000}) {
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

// The CRC-32 that PyTorch's own indices have, by torch_peer.py.
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

// Of the rank at 3 of 8.
TEST(DrawnCountsTest, IsWhatOneRankHas) {
  struct Case {
    DrawSubject subject;
    int64_t size, drawn, most_repeated;
  };
  for (const Case& c :
       {Case{DrawSubject::kTorch, 1, 1, 0}, Case{DrawSubject::kTorch, 16, 2, 0},
        Case{DrawSubject::kTorch, 17, 3, 0}, Case{DrawSubject::kExact, 3, 0, 0},
        Case{DrawSubject::kExact, 19, 2, 0},
        Case{DrawSubject::kExact, 20, 3, 0},
        Case{DrawSubject::kPaddle, 1, 1, 0},
        Case{DrawSubject::kPaddle, 16, 2, 0},
        Case{DrawSubject::kPaddle, 17, 3, 1},
        Case{DrawSubject::kPaddle, 801, 101, 7},
        Case{DrawSubject::kPaddle, 807, 101, 1}}) {
    const IndexCounts counts = DrawnCounts(c.subject, c.size);
    EXPECT_EQ(counts.drawn, c.drawn) << Name(c.subject) << " " << c.size;
    EXPECT_EQ(counts.most_repeated, c.most_repeated)
        << Name(c.subject) << " " << c.size;
  }
}

TEST(CheckIndicesTest, RejectsAnotherCount) {
  const std::vector<int64_t> indices = {3, 0, 2};
  EXPECT_THAT(CheckIndices(indices, 4, {.drawn = 3}), IsOk());
  for (const int64_t drawn : {2, 4}) {
    EXPECT_THAT(CheckIndices(indices, 4, {.drawn = drawn}),
                StatusIs(kDataLoss, HasSubstr("3 indices are drawn, not")));
  }
  EXPECT_THAT(CheckIndices({}, 4, {.drawn = 0}), IsOk());
}

TEST(CheckIndicesTest, RejectsWhatIsNoSample) {
  const std::vector<int64_t> high = {3, 0, 2};
  EXPECT_THAT(CheckIndices(high, 3, {.drawn = 3}),
              StatusIs(kDataLoss, HasSubstr("index 3 is not one of 3")));
  const std::vector<int64_t> negative = {-1};
  EXPECT_THAT(CheckIndices(negative, 3, {.drawn = 1}),
              StatusIs(kDataLoss, HasSubstr("index -1")));
}

TEST(CheckIndicesTest, RejectsOneRepeatTooMany) {
  const std::vector<int64_t> twice = {0, 1, 0, 1};
  EXPECT_THAT(CheckIndices(twice, 4, {.drawn = 4, .most_repeated = 2}), IsOk());
  for (const int64_t most : {0, 1}) {
    EXPECT_THAT(CheckIndices(twice, 4, {.drawn = 4, .most_repeated = most}),
                StatusIs(kDataLoss, HasSubstr("2 of 4 indices are repeated")));
  }
}

// Reading a computed epoch, and that wrong ones are seen.

using ::testing::Gt;

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

// That every update happens and is timed; not how fast.

TEST(TimeRandomUpdatesTest, LosesNoneAtAnySize) {
  for (const int64_t size : {1, 2, 511, 512, 513, 100'003, 9'000'000}) {
    EXPECT_THAT(TimeRandomUpdates(size), IsOkAndHolds(Gt(0.0))) << size;
  }
}

TEST(TimeRandomUpdatesTest, ReportsMemoryThatIsNotThere) {
  EXPECT_THAT(TimeRandomUpdates(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

}  // namespace
}  // namespace lockstep::benchmarks
