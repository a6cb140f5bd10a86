// What NCCL is told, for every way in which three ranks can be placed.
#include "collectives/nccl/gpu_sharing.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

RankPlace Place(int gpu, int host, int process) {
  RankPlace place;
  place.gpu_uuid[0] = static_cast<char>(gpu);
  place.host = static_cast<uint64_t>(host);
  place.process = static_cast<uint64_t>(process);
  return place;
}

// Null if it is not set.
const std::string* Find(const GpuSharing& sharing, const std::string& name) {
  for (const EnvironmentVariable& variable : sharing.environment) {
    if (variable.name == name) return &variable.value;
  }
  return nullptr;
}

// Every assignment of one of `values` to each of three ranks.
std::vector<std::vector<int>> Assignments(int values) {
  std::vector<std::vector<int>> all;
  for (int a = 0; a < values; ++a) {
    for (int b = 0; b < values; ++b) {
      for (int c = 0; c < values; ++c) all.push_back({a, b, c});
    }
  }
  return all;
}

// What holds for a placement, said the slow way.
struct Facts {
  bool shared = false;
  bool within_process = false;  // Some sharing is.
  bool one_host = true;
  int most = 1;
};

Facts FactsOf(const std::vector<RankPlace>& places) {
  Facts facts;
  for (const RankPlace& a : places) {
    int on_gpu = 0;
    for (const RankPlace& b : places) {
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

void CheckOlder(const std::vector<RankPlace>& places, const Facts& facts) {
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
    EXPECT_EQ(sharing->environment.size(), facts.one_host ? 2 : 1);
    const std::string* const interface = Find(*sharing, "NCCL_SOCKET_IFNAME");
    ASSERT_EQ(interface != nullptr, facts.one_host);
    if (interface != nullptr) {
      EXPECT_EQ(*interface, "lo");
    }
    ASSERT_NE(Find(*sharing, "NCCL_HOSTID"), nullptr);
    names.insert(*Find(*sharing, "NCCL_HOSTID"));
    processes.insert({places[rank].host, places[rank].process});
  }
  // A host for each process.
  if (!facts.within_process) {
    EXPECT_EQ(names.size(), processes.size());
  }
}

void CheckNewer(const std::vector<RankPlace>& places, const Facts& facts) {
  for (int rank = 0; rank < 3; ++rank) {
    const auto sharing = PlanGpuSharing(places, rank, 23004);
    ASSERT_THAT(sharing, IsOk());
    EXPECT_TRUE(sharing->shared);
    const std::vector<EnvironmentVariable> want = {
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_MAX_CTAS", facts.most == 2 ? "16" : "10"}};
    EXPECT_EQ(sharing->environment, want);
  }
}

TEST(GpuSharingTest, EveryPlacementOfThreeRanks) {
  int shared = 0;
  for (const std::vector<int>& gpus : Assignments(3)) {
    for (const std::vector<int>& hosts : Assignments(2)) {
      for (const std::vector<int>& processes : Assignments(3)) {
        std::vector<RankPlace> places;
        for (int rank = 0; rank < 3; ++rank) {
          places.push_back(Place(gpus[rank], hosts[rank], processes[rank]));
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
          EXPECT_THAT(sharing->environment, IsEmpty());
        }
      }
    }
  }
  // 27 - 6 ways to share a GPU.
  EXPECT_EQ(shared, 21 * 8 * 27);
}

TEST(GpuSharingTest, OneRankSharesNothing) {
  const std::vector<RankPlace> places = {Place(0, 0, 0)};
  const auto sharing = PlanGpuSharing(places, 0, 22809);
  ASSERT_THAT(sharing, IsOk());
  EXPECT_FALSE(sharing->shared);
}

TEST(GpuSharingTest, ManyRanksKeepOneBlockEach) {
  const std::vector<RankPlace> places(100, Place(0, 0, 0));
  const auto sharing = PlanGpuSharing(places, 0, 23000);
  ASSERT_THAT(sharing, IsOk());
  ASSERT_NE(Find(*sharing, "NCCL_MAX_CTAS"), nullptr);
  EXPECT_EQ(*Find(*sharing, "NCCL_MAX_CTAS"), "1");
}

TEST(GpuSharingTest, NamesTheRanksAndTheVersion) {
  const std::vector<RankPlace> places = {Place(0, 0, 0), Place(1, 0, 1),
                                         Place(1, 0, 1)};
  EXPECT_THAT(PlanGpuSharing(places, 0, 22999),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ranks 1 and 2 are threads of one process "
                                 "that share a GPU: NCCL before 2.30 (here "
                                 "2.29)")));
}

}  // namespace
}  // namespace lockstep
