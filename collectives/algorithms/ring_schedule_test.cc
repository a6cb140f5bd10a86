// That the ring adds every rank once, in the stated order.
#include "collectives/algorithms/ring_schedule.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kCounts = 60;
constexpr int kWorldSizes = 9;

TEST(RingScheduleTest, RankModuloIsNeverNegative) {
  EXPECT_EQ(RankModulo(-1, 3), 2);
  EXPECT_EQ(RankModulo(-7, 3), 2);
  EXPECT_EQ(RankModulo(3, 3), 0);
  EXPECT_EQ(RankModulo(0, 1), 0);
}

// For each element, the ranks whose values a rank has summed, in order.
using Terms = std::vector<std::vector<int>>;

using SegmentInStep = std::function<int(int rank, int world_size, int step)>;

// Plays a ring all-reduce of lists of ranks in place of numbers, all ranks
// sending at once in each step.
std::vector<Terms> Play(int64_t count, int world_size,
                        const SegmentInStep& sent) {
  std::vector<Terms> ranks(world_size, Terms(count));
  for (int rank = 0; rank < world_size; ++rank) {
    for (std::vector<int>& terms : ranks[rank]) terms = {rank};
  }
  for (int step = 0; step < AllReduceSteps(world_size); ++step) {
    const std::vector<Terms> before = ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      const int previous = RankModulo(rank - 1, world_size);
      const Segment segment =
          SegmentOf(count, world_size, sent(previous, world_size, step));
      for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
        std::vector<int> terms = before[previous][i];
        if (step < world_size - 1) {
          terms.insert(terms.end(), before[rank][i].begin(),
                       before[rank][i].end());
        }
        ranks[rank][i] = terms;
      }
    }
  }
  return ranks;
}

// Every rank must hold every rank's value once, added in the stated order.
absl::Status CheckTerms(const std::vector<Terms>& ranks, int64_t count) {
  const int world_size = static_cast<int>(ranks.size());
  for (int rank = 0; rank < world_size; ++rank) {
    for (int k = 0; k < world_size; ++k) {
      const Segment segment = SegmentOf(count, world_size, k);
      std::vector<int> want;
      for (int j = 0; j < world_size; ++j) want.push_back((k + j) % world_size);
      for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i) {
        if (ranks[rank][i] == want) continue;
        return absl::DataLossError(
            absl::StrCat("rank ", rank, ", element ", i));
      }
    }
  }
  return absl::OkStatus();
}

TEST(RingScheduleTest, AddsEveryRankOnceInTheStatedOrder) {
  for (int64_t count = 0; count < kCounts; ++count) {
    for (int world_size = 1; world_size <= kWorldSizes; ++world_size) {
      EXPECT_THAT(CheckTerms(Play(count, world_size, SentSegment), count),
                  IsOk())
          << count << " elements, " << world_size << " ranks";
    }
  }
}

TEST(RingScheduleTest, ReceivesWhatTheRankBeforeSends) {
  for (int world_size = 1; world_size <= kWorldSizes; ++world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      for (int step = 0; step < AllReduceSteps(world_size); ++step) {
        EXPECT_EQ(
            ReceivedSegment(rank, world_size, step),
            SentSegment(RankModulo(rank - 1, world_size), world_size, step));
        // What is received is what is sent next.
        EXPECT_EQ(ReceivedSegment(rank, world_size, step),
                  SentSegment(rank, world_size, step + 1));
      }
    }
  }
}

TEST(RingScheduleTest, CompletesEachSegmentAtOneRank) {
  for (int world_size = 2; world_size <= kWorldSizes; ++world_size) {
    const int last = HalfRingSteps(world_size) - 1;
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(CompletedSegment(rank, world_size),
                ReceivedSegment(rank, world_size, last));
      // A reduce-scatter ends with part `rank` at `rank`.
      EXPECT_EQ(ReceivedSegment(ReduceScatterRank(rank, world_size), world_size,
                                last),
                rank);
    }
  }
}

// Controls: schedules that are wrong in one place.

TEST(RingScheduleTest, CheckRejectsOneStepWithTheWrongSegment) {
  const SegmentInStep wrong = [](int rank, int world_size, int step) {
    return SentSegment(rank, world_size, step == 1 ? 0 : step);
  };
  EXPECT_THAT(CheckTerms(Play(12, 3, wrong), 12),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element")));
}

TEST(RingScheduleTest, CheckRejectsAnotherOrderOfAdditions) {
  std::vector<Terms> ranks = Play(12, 3, SentSegment);
  std::swap(ranks[2][11][0], ranks[2][11][1]);
  EXPECT_THAT(CheckTerms(ranks, 12),
              StatusIs(absl::StatusCode::kDataLoss, "rank 2, element 11"));
}

TEST(RingScheduleTest, CheckRejectsARankCountedTwice) {
  std::vector<Terms> ranks = Play(12, 3, SentSegment);
  ranks[0][0].push_back(1);
  EXPECT_THAT(CheckTerms(ranks, 12),
              StatusIs(absl::StatusCode::kDataLoss, "rank 0, element 0"));
}

}  // namespace
}  // namespace lockstep
