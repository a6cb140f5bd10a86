// Tests of flags; of timed draws and of finding wrong indices; and of PyTorch's
// answers and failures.
#include "benchmarks/sampler/turn.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(DrawEpochTest, DrawsThisRanksShareAndTimesIt) {
  for (const DrawSubject subject :
       {DrawSubject::kTorch, DrawSubject::kExact, DrawSubject::kPaddle}) {
    for (const int64_t size : {1, 7, 8, 9, 17, 801, 1000, 1003, 60000}) {
      const absl::StatusOr<DrawResult> result = DrawEpoch(subject, size);
      ASSERT_THAT(result, IsOk()) << Name(subject) << " " << size;
      EXPECT_GT(result->seconds, 0);
      EXPECT_EQ(result->count, DrawnCounts(subject, size).drawn)
          << Name(subject) << " " << size;
    }
  }
}

// The number is the CRC-32 of PyTorch's own indices, from torch_peer.py.
TEST(DrawEpochTest, DrawsWhatPyTorchDraws) {
  EXPECT_EQ(DrawEpoch(DrawSubject::kTorch, 60000)->checksum, 201234808u);
}

// The CRC-32 is that of "12345678". ("123456789" has 0xcbf43926.)
TEST(IndexChecksumTest, IsTheCrcOfTheBytes) {
  EXPECT_EQ(IndexChecksum({}), 0u);
  const std::vector<int64_t> indices = {0x3837363534333231};
  EXPECT_EQ(IndexChecksum(indices), 0x9ae0daafu);
  EXPECT_NE(IndexChecksum(std::vector<int64_t>{1, 2}),
            IndexChecksum(std::vector<int64_t>{2, 1}));
}

// The counts are those of rank 3 of 8.
TEST(DrawnCountsTest, IsWhatOneRankHas) {
  struct Case {
    DrawSubject subject;
    int64_t size, drawn, max_repeated;
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
    EXPECT_EQ(counts.max_repeated, c.max_repeated)
        << Name(c.subject) << " " << c.size;
  }
}

TEST(CheckIndicesTest, RejectsOtherCountsWhatIsNoSampleAndARepeatTooMany) {
  struct Case {
    std::vector<int64_t> indices;
    int64_t size;
    IndexCounts counts;
    const char* why;  // Empty if the indices are correct.
  };
  for (const Case& c :
       {Case{{}, 4, {.drawn = 0}, ""}, Case{{3, 0, 2}, 4, {.drawn = 3}, ""},
        Case{{3, 0, 2}, 4, {.drawn = 2}, "3 indices are drawn, not"},
        Case{{3, 0, 2}, 4, {.drawn = 4}, "3 indices are drawn, not"},
        Case{{3, 0, 2}, 3, {.drawn = 3}, "index 3 is not one of 3"},
        Case{{-1}, 3, {.drawn = 1}, "index -1"},
        Case{{0, 1, 0, 1}, 4, {4, 2}, ""},
        Case{{0, 1, 0, 1}, 4, {4, 1}, "2 of 4 indices are repeated"},
        Case{{0, 1, 0, 1}, 4, {4, 0}, "2 of 4 indices are repeated"}}) {
    const absl::Status status = CheckIndices(c.indices, c.size, c.counts);
    EXPECT_EQ(status.code(), *c.why ? kDataLoss : absl::StatusCode::kOk);
    EXPECT_THAT(status.message(), HasSubstr(c.why));
  }
}

// Reading a computed epoch, and finding a wrong one.

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

// The benchmark measures the exact number. A list would take terabytes.
TEST(KeyedMemoryTest, HoldsNoList) {
  const absl::StatusOr<int64_t> memory = KeyedMemory(1'000'000'000'000);
  ASSERT_THAT(memory, IsOk());
  EXPECT_GE(*memory, 0);
  EXPECT_LT(*memory, 64 << 20);  // Also holds under a sanitizer.
}

// The control: a draw that takes 2 MiB does not meet the bar.
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

// Every update happens and is timed. Its speed is not tested.

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

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseSizesTest, SortsThemTakesEachOnceAndNamesTheWrongOne) {
  EXPECT_THAT(ParseSizes("11"), IsOkAndHolds(ElementsAre(11)));
  EXPECT_THAT(ParseSizes("60000,1,2000000000,60000"),
              IsOkAndHolds(ElementsAre(1, 60000, 2000000000)));
  EXPECT_THAT(ParseSizes("1,two"), StatusIs(kInvalid, HasSubstr("'two'")));
  for (const char* text : {"", "0", "-1", "2000000001", "1e6", "1,,2", "1,two",
                           "99999999999999999999", "1.5"}) {
    EXPECT_THAT(ParseSizes(text),
                StatusIs(kInvalid, StartsWith("--sizes has '")))
        << text;
  }
}

// 100 million samples must fit in the machines on which the bars are measured.
TEST(MemoryTest, GrowsWithTheSize) {
  EXPECT_GT(DrawMemory(100'000'000), 500'000'000);
  EXPECT_LT(DrawMemory(100'000'000), 700'000'000);
  EXPECT_GT(PyTorchMemory(100'000'000), 4'800'000'000);
  EXPECT_LT(PyTorchMemory(100'000'000), 7'000'000'000);
}

// Scripts that replace Python.

absl::StatusOr<TorchProcess> Start(const std::string& script) {
  const std::string pythons[] = {MakePython(script)};
  return TorchProcess::Start(pythons, "script", absl::Now() + absl::Minutes(1));
}

TEST(SamplerPeerTest, SaysWhatToDraw) {
  absl::StatusOr<TorchProcess> peer = Start(
      "echo lockstep: ready 2.1.0; "
      "while read n p r s e; do echo lockstep: drew 0.$p$r $n $s$e; done");
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->name(), HasSubstr("PyTorch 2.1.0 ("));
  for (const int64_t size : {1, 60000}) {
    const absl::StatusOr<DrawResult> result =
        DrawWithPeer(*peer, size, SamplerSettings());
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->seconds, 0.83);
    EXPECT_EQ(result->count, size);
    EXPECT_EQ(result->checksum, 1u);
  }
}

// PyTorch is left out if its version draws another order, which is not our
// fault, and if memory is too small.
TEST(SamplerPeerTest, LeavesOutWhatItCannotDraw) {
  const std::tuple<const char*, int64_t, const char*> cases[] = {
      {"2.1.0", 1'000'000'000, "before 2.6 it draws another order"},
      {"2.6.0+cpu", int64_t{1} << 50, "MiB for this size"}};
  for (const auto& [version, size, why] : cases) {
    absl::StatusOr<TorchProcess> peer =
        Start(absl::StrCat("echo lockstep: ready ", version, "; cat"));
    ASSERT_THAT(peer, IsOk());
    EXPECT_THAT(
        DrawWithPeer(*peer, size, SamplerSettings()),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why)));
  }
}

TEST(DrawsWideTest, ReadsTheVersion) {
  for (const char* version : {"2.6.0", "2.10.1+cu124", "3.0", "2.6.0a0"}) {
    EXPECT_TRUE(MatchesAtEverySize(version)) << version;
  }
  for (const char* version : {"2.5.1", "1.13.0a0", "", "2", "x.y", "2.x"}) {
    EXPECT_FALSE(MatchesAtEverySize(version)) << version;
  }
}

TEST(ParseDrawAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParseDrawAnswer("drew 1e-3 7500 4294967295"), IsOk());
  for (const char* answer :
       {"", "drew", "drew 1 2", "drew 1 2 3 4", "took 1 2 3", "drew 0 2 3",
        "drew nan 2 3", "drew inf 2 3", "drew -1 2 3", "drew 1 0 3",
        "drew 1 2.5 3", "drew 1 2 4294967296", "drew 1 2 -3", "drew 1 2 x"}) {
    EXPECT_THAT(
        ParseDrawAnswer(answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("has an unknown form")))
        << answer;
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
