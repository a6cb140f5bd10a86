#include "collectives/launch/gpu_assignment.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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
              AssignGpus({ranks, per_rank, share}, absl::StrJoin(all, ","), 0);
          ASSERT_THAT(values, IsOk());
          ASSERT_EQ(values->size(), ranks);
          // In rank order they are the first of all, each once.
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
        const auto values = AssignGpus({ranks, per_rank, /*share=*/true},
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

TEST(GpuAssignmentTest, TakesNamesAndSpaces) {
  EXPECT_THAT(AssignGpus({.ranks = 2}, "GPU-8932f937, MIG-1a/2/0", 0),
              IsOkAndHolds(ElementsAre("GPU-8932f937", "MIG-1a/2/0")));
  EXPECT_THAT(AssignGpus({.ranks = 3}, " 7 ,3, 5 ", 0),
              IsOkAndHolds(ElementsAre("7", "3", "5")));
}

TEST(GpuAssignmentTest, TakesAllOfTheHostIfNotTold) {
  EXPECT_THAT(AssignGpus({.ranks = 2, .gpus_per_rank = 2}, std::nullopt, 5),
              IsOkAndHolds(ElementsAre("0,1", "2,3")));
}

TEST(GpuAssignmentTest, StopsWhereCudaStops) {
  EXPECT_THAT(AssignGpus({.ranks = 2}, "3,2,-1,1", 0),
              IsOkAndHolds(ElementsAre("3", "2")));
  EXPECT_THAT(AssignGpus({.ranks = 3}, "3,2,-1,1", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 2")));
}

TEST(GpuAssignmentTest, SaysHowManyAreMissing) {
  const struct {
    GpuRequest request;
    std::optional<std::string> visible;
    int on_host;
    std::string message;
  } kCases[] = {
      {{.ranks = 3},
       "0,1",
       8,
       "3 ranks with 1 GPU each: CUDA_VISIBLE_DEVICES=\"0,1\" has 2 (see "
       "--share_gpus)"},
      {{.ranks = 2, .gpus_per_rank = 4},
       std::nullopt,
       7,
       "2 ranks with 4 GPUs each: this host has 7 (see --share_gpus)"},
      {{.ranks = 1, .gpus_per_rank = 3, .share = true},
       "0,1",
       8,
       "1 rank with 3 GPUs each: CUDA_VISIBLE_DEVICES=\"0,1\" has 2"},
      {{.ranks = 2, .share = true},
       std::nullopt,
       0,
       "2 ranks with 1 GPU each: this host has 0"},
      {{.ranks = 2},
       "",
       8,
       "2 ranks with 1 GPU each: CUDA_VISIBLE_DEVICES=\"\" has 0"},
      {{.ranks = 1 << 20, .gpus_per_rank = 1 << 20},
       "0",
       8,
       "1048576 ranks with 1048576 GPUs each: CUDA_VISIBLE_DEVICES=\"0\" has "
       "1 (see --share_gpus)"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(AssignGpus(test.request, test.visible, test.on_host),
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
    EXPECT_THAT(AssignGpus({}, test.visible, 8),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("CUDA_VISIBLE_DEVICES=\"",
                                                      test.visible, "\"")),
                               HasSubstr(test.entry), Not(HasSubstr("\n")))));
  }
}

TEST(GpuAssignmentTest, CountsGpusOfTheHost) { EXPECT_GE(GpusOnHost(), 0); }

}  // namespace
}  // namespace lockstep
