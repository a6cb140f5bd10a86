#include "collectives/launch/core_binding.h"

#include <set>
#include <vector>

#include "collectives/usable_cores.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

// One hardware thread for each of n cores of one package.
std::vector<Cpu> Plain(int n) {
  std::vector<Cpu> cpus;
  for (int i = 0; i < n; ++i) cpus.push_back({.number = i, .core = i});
  return cpus;
}

// Two packages of two cores of two hardware threads, numbered as most machines
// number them: the second threads of all cores come after the first.
std::vector<Cpu> TwoPackages() {
  std::vector<Cpu> cpus;
  for (int number = 0; number < 8; ++number) {
    cpus.push_back(
        {.number = number, .package = number / 2 % 2, .core = number % 4});
  }
  return cpus;
}

TEST(ShareCoresTest, SharesAreEqualDisjointAndContiguous) {
  for (int cpus = 1; cpus <= 13; ++cpus) {
    for (int ranks = 1; ranks <= cpus; ++ranks) {
      const std::vector<CoreShare> shares = ShareCores(Plain(cpus), ranks);
      ASSERT_EQ(shares.size(), ranks);
      int next = 0;
      for (const CoreShare& share : shares) {
        EXPECT_EQ(share.cores, cpus / ranks);
        ASSERT_EQ(share.cpus.size(), cpus / ranks);
        for (const int cpu : share.cpus) EXPECT_EQ(cpu, next++);
      }
    }
  }
}

TEST(ShareCoresTest, KeepsHardwareThreadsAndPackagesTogether) {
  EXPECT_THAT(ShareCores(TwoPackages(), 1),
              ElementsAre(CoreShare{{0, 1, 2, 3, 4, 5, 6, 7}, 4}));
  EXPECT_THAT(
      ShareCores(TwoPackages(), 2),
      ElementsAre(CoreShare{{0, 1, 4, 5}, 2}, CoreShare{{2, 3, 6, 7}, 2}));
  // One of the four cores is nobody's.
  EXPECT_THAT(ShareCores(TwoPackages(), 3),
              ElementsAre(CoreShare{{0, 4}, 1}, CoreShare{{1, 5}, 1},
                          CoreShare{{2, 6}, 1}));
}

TEST(ShareCoresTest, SplitsCoresIfThereAreMoreRanks) {
  EXPECT_THAT(
      ShareCores(TwoPackages(), 5),
      ElementsAre(CoreShare{{0}, 1}, CoreShare{{4}, 1}, CoreShare{{1}, 1},
                  CoreShare{{5}, 1}, CoreShare{{2}, 1}));
}

TEST(ShareCoresTest, TakesCpusInAnyOrderAndWithGaps) {
  EXPECT_THAT(ShareCores({{.number = 9, .core = 9},
                          {.number = 3, .core = 3},
                          {.number = 5, .core = 5}},
                         2),
              ElementsAre(CoreShare{{3}, 1}, CoreShare{{5}, 1}));
}

TEST(ShareCoresTest, RanksTakeTurnsIfThereAreMoreThanCpus) {
  for (int cpus = 1; cpus <= 5; ++cpus) {
    for (int ranks = cpus + 1; ranks <= 3 * cpus + 1; ++ranks) {
      const std::vector<CoreShare> shares = ShareCores(Plain(cpus), ranks);
      ASSERT_EQ(shares.size(), ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(shares[rank], (CoreShare{{rank % cpus}, 1}));
      }
    }
  }
}

TEST(FormatCpusTest, ShortensRuns) {
  EXPECT_EQ(FormatCpus({3}), "3");
  EXPECT_EQ(FormatCpus({0, 1}), "0-1");
  EXPECT_EQ(FormatCpus({0, 2, 3, 4, 9}), "0,2-4,9");
}

TEST(ReadUsableCpusTest, ListsTheAffinityWithItsCores) {
  std::vector<int> numbers;
  std::set<std::vector<int>> places;
  for (const Cpu& cpu : ReadUsableCpus()) {
    numbers.push_back(cpu.number);
    places.insert({cpu.package, cpu.core});
  }
  EXPECT_EQ(numbers, AffinityCpus());
  EXPECT_GE(places.size(), 1u);
  EXPECT_LE(places.size(), numbers.size());
}

}  // namespace
}  // namespace lockstep
