#include "collectives/launch/rank_placement.h"

#include <stdlib.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

// Returns one hardware thread for each of n cores of one package.
std::vector<Cpu> Plain(int n) {
  std::vector<Cpu> cpus;
  for (int i = 0; i < n; ++i) cpus.push_back({.number = i, .core = i});
  return cpus;
}

// Returns two packages of two cores of two hardware threads, numbered as most
// machines number them: the second threads of all cores come after the first.
std::vector<Cpu> TwoPackages() {
  std::vector<Cpu> cpus;
  for (int number = 0; number < 8; ++number) {
    cpus.push_back(
        {.number = number, .package = number / 2 % 2, .core = number % 4});
  }
  return cpus;
}

TEST(ShareCoresTest, SharesAreEqualDisjointAndContiguousOrTakeTurns) {
  for (int cpus = 1; cpus <= 13; ++cpus) {
    for (int ranks = 1; ranks <= 3 * cpus + 1; ++ranks) {
      const std::vector<CoreShare> shares = ShareCores(Plain(cpus), ranks);
      ASSERT_EQ(shares.size(), ranks);
      const int each = std::max(cpus / ranks, 1);
      int next = 0;
      for (const CoreShare& share : shares) {
        EXPECT_EQ(share.cores, each);
        ASSERT_EQ(share.cpus.size(), each);
        for (const int cpu : share.cpus) EXPECT_EQ(cpu, next++ % cpus);
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
  // One of the four cores is not used.
  EXPECT_THAT(ShareCores(TwoPackages(), 3),
              ElementsAre(CoreShare{{0, 4}, 1}, CoreShare{{1, 5}, 1},
                          CoreShare{{2, 6}, 1}));
  // There are more ranks than cores.
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

std::vector<std::string> Numbers(int n) {
  std::vector<std::string> numbers;
  for (int i = 0; i < n; ++i) numbers.push_back(absl::StrCat(i + 10));
  return numbers;
}

TEST(GpuAssignmentTest, EveryRankGetsItsOwn) {
  for (int gpus = 1; gpus <= 8; ++gpus) {
    const std::vector<std::string> all = Numbers(gpus);
    for (int per_rank = 1; per_rank <= gpus; ++per_rank) {
      for (int ranks = 1; ranks * per_rank <= gpus; ++ranks) {
        for (const bool share : {false, true}) {
          const auto values =
              AssignGpus(ranks, {per_rank, share}, absl::StrJoin(all, ","), 0);
          ASSERT_THAT(values, IsOk());
          ASSERT_EQ(values->size(), ranks);
          // In rank order, the values are the first GPUs, each once.
          EXPECT_EQ(
              absl::StrJoin(*values, ","),
              absl::StrJoin(all.begin(), all.begin() + ranks * per_rank, ","));
        }
      }
    }
  }
}

TEST(GpuAssignmentTest, SharingSpreadsRanksEvenly) {
  for (int gpus = 1; gpus <= 6; ++gpus) {
    for (int per_rank = 1; per_rank <= gpus; ++per_rank) {
      for (int ranks = 1; ranks <= 12; ++ranks) {
        const auto values = AssignGpus(ranks, {per_rank, /*share_gpus=*/true},
                                       absl::StrJoin(Numbers(gpus), ","), 0);
        ASSERT_THAT(values, IsOk());
        std::map<std::string, int> users;
        for (const std::string& value : *values) {
          const std::vector<std::string> mine = absl::StrSplit(value, ',');
          ASSERT_EQ(mine.size(), per_rank);
          for (const std::string& gpu : mine) ++users[gpu];
        }
        for (const std::string& gpu : Numbers(gpus)) {
          EXPECT_GE(users[gpu], ranks * per_rank / gpus);
          EXPECT_LE(users[gpu], (ranks * per_rank + gpus - 1) / gpus);
        }
      }
    }
  }
}

TEST(GpuAssignmentTest, TakesWhatIsVisibleOrAllOfTheHost) {
  const struct {
    int ranks, gpus_per_rank;
    std::optional<std::string> visible;
    std::vector<std::string> want;
  } kCases[] = {
      {2, 1, "GPU-8932f937, MIG-1a/2/0", {"GPU-8932f937", "MIG-1a/2/0"}},
      {3, 1, " 7 ,3, 5 ", {"7", "3", "5"}},
      {2, 1, "3,2,-1,1", {"3", "2"}},  // CUDA stops at -1.
      {2, 2, std::nullopt, {"0,1", "2,3"}},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(AssignGpus(test.ranks, {test.gpus_per_rank}, test.visible, 5),
                IsOkAndHolds(test.want));
  }
}

TEST(GpuAssignmentTest, SaysHowManyAreMissing) {
  const struct {
    int ranks;
    PlacementOptions options;
    std::optional<std::string> visible;
    int on_host;
    std::string message;
  } kCases[] = {
      {3,
       {1},
       "0,1",
       8,
       "3 ranks with 1 GPU each: CUDA_VISIBLE_DEVICES=\"0,1\" has 2 (see "
       "--share_gpus)"},
      {3,
       {1},
       "3,2,-1,1",
       8,
       "3 ranks with 1 GPU each: CUDA_VISIBLE_DEVICES=\"3,2,-1,1\" has 2 (see "
       "--share_gpus)"},
      {2,
       {4},
       std::nullopt,
       7,
       "2 ranks with 4 GPUs each: this host has 7 (see --share_gpus)"},
      {1,
       {3, true},
       "0,1",
       8,
       "1 rank with 3 GPUs each: CUDA_VISIBLE_DEVICES=\"0,1\" has 2"},
      {2,
       {1, true},
       std::nullopt,
       0,
       "2 ranks with 1 GPU each: this host has 0"},
      {2,
       {1},
       "",
       8,
       "2 ranks with 1 GPU each: CUDA_VISIBLE_DEVICES=\"\" has 0"},
      {1 << 20,
       {1 << 20},
       "0",
       8,
       "1048576 ranks with 1048576 GPUs each: CUDA_VISIBLE_DEVICES=\"0\" has "
       "1 (see --share_gpus)"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(
        AssignGpus(test.ranks, test.options, test.visible, test.on_host),
        StatusIs(absl::StatusCode::kInvalidArgument, test.message));
  }
}

TEST(GpuAssignmentTest, NamesEntryAtFault) {
  const struct {
    const char* visible;
    const char* entry;
  } kCases[] = {{"0,x", "\"x\""},     {"0,,1", "\"\""},   {"0,1,", "\"\""},
                {"1.5", "\"1.5\""},   {"-2", "\"-2\""},   {"GPU-", "\"GPU-\""},
                {"gpu-1", "\"gpu-1"}, {"0 1", "\"0 1\""}, {"0,1,0", "0 twice"},
                {"1,01", "1 twice"}};
  for (const auto& test : kCases) {
    EXPECT_THAT(AssignGpus(1, {1}, test.visible, 8),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("CUDA_VISIBLE_DEVICES=\"",
                                                      test.visible, "\"")),
                               HasSubstr(test.entry), Not(HasSubstr("\n")))));
  }
}

class RankPlacementTest : public testing::Test {
 protected:
  RankPlacementTest() {
    unsetenv("OMP_NUM_THREADS");
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
};

TEST_F(RankPlacementTest, ABoundRankHasAllItsCores) {
  const auto placements = PlaceRanks(1, {.bind_cores = true});
  ASSERT_THAT(placements, IsOkAndHolds(SizeIs(1)));
  EXPECT_EQ(placements->front().cpus, AffinityCpus());
  const Environment& environment = placements->front().environment;
  ASSERT_THAT(environment, SizeIs(1));
  EXPECT_EQ(environment[0].first, "OMP_NUM_THREADS");
  const int threads = atoi(environment[0].second.c_str());
  EXPECT_GE(threads, 1);
  EXPECT_LE(threads, UsableCores());
}

TEST_F(RankPlacementTest, LeavesTheNumberOfThreadsToTheUser) {
  EXPECT_THAT(PlaceRanks(1, {})->front().environment,
              ElementsAre(Pair("OMP_NUM_THREADS", "1")));
  setenv("OMP_NUM_THREADS", "7", 1);
  for (const bool bind : {false, true}) {
    const auto placements = PlaceRanks(2, {.bind_cores = bind});
    ASSERT_THAT(placements, IsOk());
    EXPECT_THAT(placements->front().environment, IsEmpty());
    EXPECT_EQ(placements->front().cpus.empty(), !bind);
  }
}

TEST_F(RankPlacementTest, SaysWhichCoresRanksAreBoundTo) {
  std::vector<RankPlacement> placements(2);
  placements[0].cpus = {0, 1, 2, 3};
  placements[1].cpus = {4, 6, 7, 8, 12, 13};
  EXPECT_EQ(FormatBinding(placements),
            "lockstep: bound to cores: rank 0: 0-3; rank 1: 4,6-8,12-13");
  placements.resize(20, placements[0]);
  EXPECT_THAT(FormatBinding(placements),
              AllOf(HasSubstr("rank 7: 0-3; 12 more"),
                    testing::Not(HasSubstr("rank 8"))));
  EXPECT_EQ(FormatBinding({}), "");
}

}  // namespace
}  // namespace lockstep
