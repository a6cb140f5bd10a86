// Tests the settings that NCCL gets when ranks share GPUs, for every placement
// of three ranks.
#include "collectives/nccl/gpu_sharing.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

RankLocation Place(int gpu, int host, int process) {
  RankLocation place;
  place.gpu_uuid[0] = static_cast<char>(gpu);
  place.gpu_bus = static_cast<uint64_t>(gpu);
  place.host = static_cast<uint64_t>(host);
  place.process = static_cast<uint64_t>(process);
  return place;
}

// Returns "" if the variable is not set.
std::string Find(const GpuSharing& sharing, const std::string& name) {
  const auto found = sharing.environment.find(name);
  return found == sharing.environment.end() ? "" : found->second;
}

// The properties of a placement, computed by brute force.
struct Facts {
  bool shared = false;
  bool within_process = false;  // Whether ranks of one process share a GPU.
  bool one_host = true;
  int most = 1;
};

Facts FactsOf(const std::vector<RankLocation>& places) {
  Facts facts;
  for (const RankLocation& a : places) {
    int on_gpu = 0;
    for (const RankLocation& b : places) {
      if (a.host != b.host) facts.one_host = false;
      if (a.gpu_uuid != b.gpu_uuid) continue;
      ++on_gpu;
      if (&a == &b) continue;
      facts.shared = true;
      if (a.host == b.host && a.process == b.process) {
        facts.within_process = true;
      }
    }
    facts.most = std::max(facts.most, on_gpu);
  }
  return facts;
}

void CheckOlder(const std::vector<RankLocation>& places, const Facts& facts) {
  std::set<std::string> names;
  std::set<std::pair<uint64_t, uint64_t>> processes;
  for (int rank = 0; rank < 3; ++rank) {
    const auto sharing = PlanGpuSharing(places, rank, 22809);
    if (facts.within_process) {
      EXPECT_THAT(sharing, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("needs a process for each")));
      continue;
    }
    ASSERT_THAT(sharing, IsOk());
    EXPECT_TRUE(sharing->shared);
    EXPECT_EQ(sharing->environment.size(), facts.one_host ? 5 : 4);
    EXPECT_EQ(Find(*sharing, "NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
    EXPECT_EQ(Find(*sharing, "NCCL_SOCKET_IFNAME"), facts.one_host ? "lo" : "");
    EXPECT_NE(Find(*sharing, "NCCL_HOSTID"), "");
    names.insert(Find(*sharing, "NCCL_HOSTID"));
    processes.insert({places[rank].host, places[rank].process});
  }
  // Every process must pose as a host of its own.
  if (!facts.within_process) {
    EXPECT_EQ(names.size(), processes.size());
  }
}

void CheckNewer(const std::vector<RankLocation>& places, const Facts& facts) {
  for (int rank = 0; rank < 3; ++rank) {
    const auto sharing = PlanGpuSharing(places, rank, 23004);
    ASSERT_THAT(sharing, IsOk());
    EXPECT_TRUE(sharing->shared);
    const std::map<std::string, std::string> want = {
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MAX_CTAS", facts.most == 2 ? "16" : "10"},
        // Threads that share a GPU would wait for each other's launches.
        {"NCCL_LAUNCH_ORDER_IMPLICIT", facts.within_process ? "0" : "1"}};
    EXPECT_EQ(sharing->environment, want);
  }
}

TEST(GpuSharingTest, EveryPlacementOfThreeRanks) {
  int shared = 0;
  // Places each of three ranks on one of three GPUs, two hosts and three
  // processes.
  for (int placement = 0; placement < 18 * 18 * 18; ++placement) {
    std::vector<RankLocation> places;
    for (int rank = 0, rest = placement; rank < 3; ++rank, rest /= 18) {
      places.push_back(Place(rest % 3, rest / 3 % 2, rest / 6 % 3));
    }
    const Facts facts = FactsOf(places);
    if (facts.shared) {
      ++shared;
      CheckOlder(places, facts);
      CheckNewer(places, facts);
      continue;
    }
    for (const int version : {22809, 23004}) {
      const auto sharing = PlanGpuSharing(places, 1, version);
      ASSERT_THAT(sharing, IsOk());
      EXPECT_FALSE(sharing->shared);
      EXPECT_THAT(sharing->environment,
                  ElementsAre(Pair("NCCL_LAUNCH_ORDER_IMPLICIT", "1")));
    }
  }
  // 27 - 6 of the assignments share a GPU.
  EXPECT_EQ(shared, 21 * 8 * 27);
}

TEST(GpuSharingTest, OneRankSharesNothingAndManyKeepOneBlockEach) {
  const std::vector<RankLocation> one = {Place(0, 0, 0)};
  const auto alone = PlanGpuSharing(one, 0, 22809);
  ASSERT_THAT(alone, IsOk());
  EXPECT_FALSE(alone->shared);
  const std::vector<RankLocation> many(100, Place(0, 0, 0));
  const auto sharing = PlanGpuSharing(many, 0, 23000);
  ASSERT_THAT(sharing, IsOk());
  EXPECT_EQ(Find(*sharing, "NCCL_MAX_CTAS"), "1");
}

TEST(GpuSharingTest, GpusAreToldApartByTheirBusToo) {
  std::vector<RankLocation> places = {Place(0, 0, 0), Place(1, 0, 1)};
  places[1].gpu_bus = places[0].gpu_bus;
  const auto slices = PlanGpuSharing(places, 0, 22809);
  ASSERT_THAT(slices, IsOk());
  EXPECT_TRUE(slices->shared);
  places[1].host = 1;
  const auto elsewhere = PlanGpuSharing(places, 0, 22809);
  ASSERT_THAT(elsewhere, IsOk());
  EXPECT_FALSE(elsewhere->shared);
}

// Threads of one process may share a GPU in that mode, and so may processes of
// which each has its own slice.
TEST(GpuSharingTest, AGpuForOneProcessIsNotShared) {
  for (const int version : {22809, 23004}) {
    std::vector<RankLocation> places = {Place(0, 0, 0), Place(0, 0, 1)};
    places[0].exclusive = places[1].exclusive = true;
    EXPECT_THAT(PlanGpuSharing(places, 0, version),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("ranks 0 and 1 are processes that share a "
                                   "GPU, whose compute mode allows one")));
    places[1].gpu_uuid[0] = 1;
    EXPECT_THAT(PlanGpuSharing(places, 0, version), IsOk());
    places[1] = places[0];
    if (version == 23004) {
      EXPECT_THAT(PlanGpuSharing(places, 0, version), IsOk());
    }
  }
}

TEST(GpuSharingTest, NamesTheRanksAndTheVersion) {
  const std::vector<RankLocation> places = {Place(0, 0, 0), Place(1, 0, 1),
                                            Place(1, 0, 1)};
  EXPECT_THAT(PlanGpuSharing(places, 0, 22999),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ranks 1 and 2 are threads of one process "
                                 "that share a GPU: NCCL before 2.30 (here "
                                 "2.29)")));
}

}  // namespace
}  // namespace lockstep
