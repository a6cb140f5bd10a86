// Tests every state of small groups. The expected conclusions are stated as
// properties, or found by trying all ranks.
#include "collectives/agreement/agreement.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

Call CallAt(Operation operation, int line) {
  return CallOf(operation, 0, {"a.cc", line});
}

// Calls `visit` with every vector of `size` digits below `base`.
void ForAllDigits(int size, int base,
                  const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> digits(static_cast<size_t>(size), 0);
  while (true) {
    visit(digits);
    int at = 0;
    while (at < size && ++digits[at] == base) digits[at++] = 0;
    if (at == size) return;
  }
}

TEST(CompareCallsTest, NamesTheFirstTwoThatDiffer) {
  // Agree ignores the line of a call.
  const Call calls[] = {CallAt(Operation::kBarrier, 1),
                        CallAt(Operation::kBarrier, 2),
                        CallAt(Operation::kSplit, 3)};
  for (int size = 0; size <= 4; ++size) {
    ForAllDigits(size, 4, [&](const std::vector<int>& choices) {
      const absl::Status status =
          CompareCalls(7, size, [&](int rank) -> const Call* {
            return choices[rank] == 3 ? nullptr : &calls[choices[rank]];
          });
      std::vector<std::pair<int, int>> differing;
      int lowest = size;
      for (int b = size - 1; b >= 0; --b) {
        if (choices[b] != 3) lowest = b;
      }
      for (int b = lowest + 1; b < size; ++b) {
        if (choices[b] != 3 && (choices[b] == 2) != (choices[lowest] == 2)) {
          differing.emplace_back(lowest, b);
        }
      }
      if (differing.empty()) {
        EXPECT_THAT(status, IsOk());
        return;
      }
      const auto [a, b] = differing.front();
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           absl::StrCat("ranks disagree on call 7: rank ", a,
                                        " called ", ToString(calls[choices[a]]),
                                        ", rank ", b, " called ",
                                        ToString(calls[choices[b]]))));
    });
  }
}

RankFacts FactsOf(int bits) {
  return {.reached = (bits & 1) != 0,
          .awaited = (bits & 2) != 0,
          .left = (bits & 4) != 0,
          .lost = (bits & 8) != 0};
}

// Returns whether a rank with these facts ends the wait of another rank.
bool EndsTheWait(const RankFacts& facts, bool with_partner) {
  const bool needed = facts.awaited || !(with_partner || facts.reached);
  return facts.left ? needed : facts.lost;
}

TEST(FindGoneTest, NamesTheLowestRankThatEndsTheWait) {
  int named = 0;
  for (int size = 1; size <= 3; ++size) {
    ForAllDigits(size, 16, [&](const std::vector<int>& bits) {
      std::vector<RankFacts> facts;
      for (const int each : bits) facts.push_back(FactsOf(each));
      for (int own = 0; own < size; ++own) {
        for (const bool with_partner : {false, true}) {
          const GoneRank gone = FindGone(facts, own, with_partner);
          ASSERT_NE(gone.rank, own);
          for (int rank = 0; rank < size; ++rank) {
            if (rank == own) continue;
            if (gone.rank >= 0 && rank > gone.rank) continue;
            EXPECT_EQ(EndsTheWait(facts[rank], with_partner),
                      rank == gone.rank);
          }
          if (gone.rank < 0) continue;
          ++named;
          EXPECT_EQ(gone.left, facts[gone.rank].left);
        }
      }
    });
  }
  EXPECT_GT(named, 1000);
}

// Returns the rank that FindLate should return. Compares every suspect with
// every other.
int Latest(const std::vector<RankFacts>& facts, int own, int64_t patience,
           bool only_missing) {
  std::vector<int> missing, others;
  for (int rank = 0; rank < std::ssize(facts); ++rank) {
    if (rank == own) continue;
    others.push_back(rank);
    if (!facts[rank].reached) missing.push_back(rank);
  }
  if (missing.empty() && !only_missing) missing = others;
  for (const int rank : missing) {
    if (facts[rank].awaited && facts[rank].silent_nanos > patience) return rank;
  }
  for (const int a : missing) {
    bool is_latest = true;
    for (const int b : missing) {
      const int64_t longer = facts[b].silent_nanos - facts[a].silent_nanos;
      if (longer > 0 || (longer == 0 && b < a)) is_latest = false;
    }
    if (is_latest) return a;
  }
  return -1;
}

TEST(FindLateTest, NamesAnAwaitedSuspectThenTheOneSilentForLongest) {
  for (int size = 1; size <= 4; ++size) {
    ForAllDigits(size, 12, [&](const std::vector<int>& digits) {
      std::vector<RankFacts> facts;
      for (const int each : digits) {
        facts.push_back(FactsOf(each % 4));
        facts.back().silent_nanos = each / 4;
      }
      for (int own = 0; own < size; ++own) {
        for (const int64_t patience : {-1, 0, 1, 2}) {
          for (const bool only_missing : {false, true}) {
            EXPECT_EQ(FindLate(facts, own, patience, only_missing),
                      Latest(facts, own, patience, only_missing));
          }
        }
      }
    });
  }
}

TEST(RankNameTest, SaysWhatIsKnown) {
  EXPECT_EQ(RankName(1, 0), "rank 1");
  EXPECT_EQ(RankName(1, 77), "rank 1 (pid 77)");
  EXPECT_EQ(RankName(1, 77, "node3"), "rank 1 (pid 77 on node3)");
}

TEST(ErrorTest, SaysWhoSawItAndWhere) {
  const Call barrier = CallAt(Operation::kBarrier, 5);
  EXPECT_THAT(LeftError("rank 1", {0, 12, false, barrier}),
              StatusIs(absl::StatusCode::kUnavailable,
                       "rank 1 left the group (seen by rank 0 in call 12, "
                       "Barrier() at a.cc:5)"));
  EXPECT_THAT(LostError("rank 1 (pid 77)", "died", {2, 0, true, barrier}),
              StatusIs(absl::StatusCode::kUnavailable,
                       "rank 1 (pid 77) died (seen by rank 2 after call 0, "
                       "Barrier() at a.cc:5)"));
  EXPECT_THAT(
      LateError("rank 1", absl::Seconds(60), ": cut off", {0, 0, false, {}}),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               "rank 1 did not come within 1m: cut off (seen by rank 0, "
               "joining the group)"));
  EXPECT_THAT(
      LateError("rank 1", absl::Milliseconds(100), "", {0, 3, true, barrier}),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               HasSubstr("within 100ms (seen by rank 0 after call 3")));
}

}  // namespace
}  // namespace lockstep
