#include "models/program/step_memory.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

struct Interval {
  int64_t bytes;
  int first, last;
};

// Returns whether no two buffers that are needed at the same time overlap.
bool AreDisjoint(const std::vector<Interval>& buffers,
                 const std::vector<int64_t>& offsets) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool at_once = buffers[i].first <= buffers[j].last &&
                           buffers[j].first <= buffers[i].last;
      const bool overlap = offsets[i] < offsets[j] + buffers[j].bytes &&
                           offsets[j] < offsets[i] + buffers[i].bytes;
      if (at_once && overlap) return false;
    }
  }
  return true;
}

TEST(ArenaTest, KeepsApartWhatIsNeededAtOneTime) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Arena arena;
    std::vector<Interval> buffers;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 50);
      buffers.push_back({static_cast<int64_t>(random() % 1000), first,
                         first + static_cast<int>(random() % 10)});
      arena.Add(buffers[i].bytes, buffers[i].first, buffers[i].first);
      arena.Extend(i, buffers[i].last, buffers[i].last);
    }
    arena.Place();
    std::vector<int64_t> offsets;
    for (int i = 0; i < 40; ++i) {
      offsets.push_back(arena.offset(i));
      EXPECT_EQ(offsets[i] % 64, 0);
      EXPECT_LE(offsets[i] + buffers[i].bytes, arena.size());
    }
    ASSERT_TRUE(AreDisjoint(buffers, offsets));
  }
  // The control: two buffers at one offset at one time are not apart.
  EXPECT_FALSE(AreDisjoint({{10, 0, 2}, {10, 2, 3}}, {0, 9}));
  EXPECT_TRUE(AreDisjoint({{10, 0, 1}, {10, 2, 3}}, {0, 9}));
}

TEST(ArenaTest, SharesWhatIsNeededInTurn) {
  Arena arena;
  for (int i = 0; i < 10; ++i) arena.Add(640, i, i + 1);
  arena.Place();
  EXPECT_EQ(arena.size(), 2 * 640);
}

}  // namespace
}  // namespace lockstep
