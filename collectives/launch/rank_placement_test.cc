#include "collectives/launch/rank_placement.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/launch/rank_process.h"
#include "collectives/usable_cores.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class RankPlacementTest : public testing::Test {
 protected:
  RankPlacementTest() {
    unsetenv("OMP_NUM_THREADS");
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
};

TEST_F(RankPlacementTest, ByDefaultOneThreadAndNothingElse) {
  const auto placements = PlaceRanks(3, {});
  ASSERT_THAT(placements, IsOkAndHolds(SizeIs(3)));
  for (const RankPlacement& placement : *placements) {
    EXPECT_THAT(placement.environment,
                ElementsAre(Pair("OMP_NUM_THREADS", "1")));
    EXPECT_THAT(placement.cpus, IsEmpty());
  }
  EXPECT_EQ(FormatBinding(*placements), "");
}

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

TEST_F(RankPlacementTest, RanksTakeTurnsOnTooFewCores) {
  const int cpus = static_cast<int>(AffinityCpus().size());
  const auto placements = PlaceRanks(cpus + 1, {.bind_cores = true});
  ASSERT_THAT(placements, IsOkAndHolds(SizeIs(cpus + 1)));
  for (const RankPlacement& placement : *placements) {
    EXPECT_THAT(placement.cpus, SizeIs(1));
    EXPECT_THAT(placement.environment,
                ElementsAre(Pair("OMP_NUM_THREADS", "1")));
  }
  EXPECT_EQ(placements->front().cpus, placements->back().cpus);
}

TEST_F(RankPlacementTest, LeavesTheNumberOfThreadsToTheUser) {
  setenv("OMP_NUM_THREADS", "7", 1);
  for (const bool bind : {false, true}) {
    const auto placements = PlaceRanks(2, {.bind_cores = bind});
    ASSERT_THAT(placements, IsOk());
    EXPECT_THAT(placements->front().environment, IsEmpty());
    EXPECT_EQ(placements->front().cpus.empty(), !bind);
  }
}

TEST_F(RankPlacementTest, DealsOutTheVisibleGpus) {
  setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8932f937,6,7", 1);
  const auto placements = PlaceRanks(2, {.gpus_per_rank = 2});
  ASSERT_THAT(placements, IsOkAndHolds(SizeIs(2)));
  EXPECT_THAT(
      (*placements)[0].environment,
      UnorderedElementsAre(Pair("OMP_NUM_THREADS", "1"),
                           Pair("CUDA_VISIBLE_DEVICES", "4,GPU-8932f937")));
  EXPECT_THAT((*placements)[1].environment,
              UnorderedElementsAre(Pair("OMP_NUM_THREADS", "1"),
                                   Pair("CUDA_VISIBLE_DEVICES", "6,7")));
  const auto shared = PlaceRanks(5, {.gpus_per_rank = 1, .share_gpus = true});
  ASSERT_THAT(shared, IsOkAndHolds(SizeIs(5)));
  EXPECT_EQ(shared->front().environment.back().second, "4");
  EXPECT_EQ(shared->back().environment.back().second, "4");
}

TEST_F(RankPlacementTest, NamesTheOptionAtFault) {
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  const struct {
    PlacementOptions options;
    const char* named;
  } kCases[] = {
      {{.gpus_per_rank = -1}, "gpus_per_rank=-1"},
      {{.share_gpus = true}, "share_gpus needs"},
      {{.gpus_per_rank = 1}, "gpus_per_rank=1: 2 ranks with 1 GPU each"},
      {{.gpus_per_rank = 2, .share_gpus = true}, "gpus_per_rank=2: "},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(
        PlaceRanks(2, test.options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.named)));
  }
}

TEST_F(RankPlacementTest, SaysWhichCoresRanksAreBoundTo) {
  std::vector<RankPlacement> placements(2);
  placements[0].cpus = {0, 1, 2, 3};
  placements[1].cpus = {4, 6};
  EXPECT_EQ(FormatBinding(placements),
            "lockstep: bound to cores: rank 0: 0-3; rank 1: 4,6");
  placements.resize(20, placements[0]);
  EXPECT_THAT(FormatBinding(placements),
              AllOf(HasSubstr("rank 7: 0-3; 12 more"),
                    testing::Not(HasSubstr("rank 8"))));
  EXPECT_EQ(FormatBinding({}), "");
}

}  // namespace
}  // namespace lockstep
