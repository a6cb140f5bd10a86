// Tests of the nccl backend's results. With the stand-in they need no GPU. With
// CUDA and NCCL they run on the available GPUs, if necessary several ranks on
// one.
#include "collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns a sum that is the same in every order of additions.
CheckedCall ExactSum() {
  return {.operation = Operation::kAllReduce,
          .type = DataType::kFloat32,
          .count = 67,
          .input = CallInput::kExact};
}

enum class Mode { kAuto, kNative, kRing, kDirect };

// A world size and a mode.
using Case = std::tuple<int, Mode>;

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"Auto", "Native", "Ring", "Direct"};
  const auto [world_size, mode] = info.param;
  return absl::StrCat(kNames[static_cast<int>(mode)], "P", world_size);
}

NcclOptions OptionsOf(Mode mode) {
  NcclOptions options;
  if (mode == Mode::kRing) options.group.algorithm = Algorithm::kRing;
  if (mode == Mode::kDirect) options.group.algorithm = Algorithm::kDirect;
  options.nccl_arithmetic = mode == Mode::kNative;
  // Small chunks, so that a thousand elements take several windows. On a shared
  // GPU larger ones, since each message takes a slice of the GPU's time.
  options.chunk_bytes = kOnStandin ? 256 : 4096;
  return options;
}

// Returns whether an average is a sum of products with 1/P, which need not be
// exact.
bool Scales(Mode mode, DataType type, ReduceOp op) {
  if (op != ReduceOp::kAverage || mode == Mode::kRing ||
      mode == Mode::kDirect) {
    return false;
  }
  return type == DataType::kFloat32 || type == DataType::kFloat64 ||
         (mode == Mode::kNative &&
          (type == DataType::kFloat16 || type == DataType::kBFloat16));
}

class NcclCommunicatorTest : public testing::TestWithParam<Case> {
 protected:
  // Runs `fn` on every rank; all must succeed, or on GPUs say that kDirect is
  // not reached.
  static void RunOk(const NcclRankFunction& fn) {
    if (!HasNcclRanks()) return;
    const auto [world_size, mode] = GetParam();
    const auto statuses = RunNcclRanks(world_size, OptionsOf(mode), fn);
    if (!kOnStandin && SkippedAsNotReached(statuses[0])) return;
    EXPECT_THAT(statuses, Each(IsOk()));
  }
};

TEST_P(NcclCommunicatorTest, Reduces) {
  RunOk([](NcclCommunicator& communicator) {
    const Mode mode = std::get<1>(GetParam());
    std::vector<CheckedCall> calls;
    const auto add = [&](DataType type, ReduceOp op, int64_t count,
                         bool in_place) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce,
            Operation::kReduceScatter}) {
        CheckedCall call = {operation, type, op, count};
        call.root = static_cast<int>(count) % communicator.world_size();
        call.in_place = in_place;
        // The ring's order of additions is specified, NCCL's is not.
        if (mode != Mode::kRing) call.input = CallInput::kExact;
        call.rounds = Scales(mode, type, op);
        calls.push_back(call);
      }
    };
    for (const DataType type : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        add(type, op, 1, false);
        add(type, op, 67, true);
        // 301 elements take several windows of the ring.
        if (mode == Mode::kRing) add(type, op, 301, false);
      }
    }
    for (const int64_t count : {0, 1, 2, 3, 4, 5, 6, 7, 127, 1000, 1283}) {
      for (const bool in_place : {false, true}) {
        add(DataType::kFloat32, ReduceOp::kSum, count, in_place);
      }
    }
    return CheckOnDevice(communicator, calls);
  });
}

// Tests of operations that move data in the same way in all modes.
class NcclAutoTest : public NcclCommunicatorTest {};

TEST_P(NcclAutoTest, MovesData) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    std::vector<CheckedCall> calls;
    for (const int64_t count : {0, 1, 13}) {
      for (int root = 0; root < communicator.world_size(); ++root) {
        CheckedCall call = {
            Operation::kSend, DataType::kInt32, {}, count, root};
        for (; call.hops < communicator.world_size(); ++call.hops) {
          calls.push_back(call);
        }
        for (const Operation operation :
             {Operation::kBroadcast, Operation::kScatter, Operation::kGather}) {
          for (const bool in_place : {false, true}) {
            calls.push_back(
                {operation, DataType::kInt32, {}, count, root, in_place});
          }
        }
      }
      std::vector<int64_t> unequal;
      for (int rank = 0; rank < communicator.world_size(); ++rank) {
        unequal.push_back(count + rank % 3);
      }
      for (const DataType type : kAllDataTypes) {
        calls.push_back({Operation::kAllToAll, type, {}, count});
        for (const bool in_place : {false, true}) {
          calls.push_back(
              {Operation::kAllGather, type, {}, count, 0, in_place});
          calls.push_back(
              {Operation::kAllGather, type, {}, 0, 0, in_place, unequal});
        }
      }
      calls.push_back({Operation::kBarrier});
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckOnDevice(communicator, calls));
    std::vector<CheckedCall> unaligned;
    for (const Operation operation :
         {Operation::kBroadcast, Operation::kScatter, Operation::kGather,
          Operation::kSend, Operation::kAllToAll, Operation::kAllGather}) {
      unaligned.push_back({operation, DataType::kFloat64, {}, /*count=*/13});
    }
    return CheckOnDevice(communicator, unaligned, /*offset=*/1);
  });
}

// If NCCL's arithmetic differs from collective.h's, kAuto uses the ring.
TEST_P(NcclAutoTest, KeepsTheMeaningOfOperations) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
      LOCKSTEP_RETURN_IF_ERROR(
          CheckRingBits(communicator, type, ReduceOp::kSum, 301));
    }
    for (const DataType type :
         {DataType::kInt32, DataType::kInt64, DataType::kUInt8}) {
      LOCKSTEP_RETURN_IF_ERROR(
          CheckRingBits(communicator, type, ReduceOp::kAverage, 301));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclAutoTest, AllocatesZeroedMemory) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const int64_t bytes : {0, 1000}) {
      LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                communicator.Allocate(bytes));
      if (static_cast<int64_t>(buffer.bytes().size()) != bytes) {
        return absl::DataLossError("not the size that was asked for");
      }
      LOCKSTEP_RETURN_IF_ERROR(CheckZeros(Buffer(buffer.bytes())));
      LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(buffer.as<float>()));
      LOCKSTEP_RETURN_IF_ERROR(CheckZeros(Buffer(buffer.bytes())));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclAutoTest, SplitsIntoGroupsThatWork) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    const int rank = communicator.rank();
    // Even ranks in reverse order, odd ranks except the last, and the last in
    // no group.
    const bool is_alone = rank == 3;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Communicator> part,
        communicator.Split(is_alone ? -1 : rank % 2, -rank));
    if (is_alone != (part == nullptr)) {
      return absl::InternalError("not in the group that it asked for");
    }
    if (!is_alone) {
      if (rank == 0 && part->rank() != part->world_size() - 1) {
        return absl::InternalError("not in the order of keys");
      }
      LOCKSTEP_RETURN_IF_ERROR(CheckOnDevice(*part, {ExactSum()}));
    }
    return CheckOnDevice(communicator, {ExactSum()});
  });
}

// The ring and the window variant have the bits of the CPU's ring, at every
// offset that elements can have in a 16-byte vector.
class NcclRingTest : public NcclCommunicatorTest {};

TEST_P(NcclRingTest, HasTheBitsOfTheCpusRing) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    const int world_size = communicator.world_size();
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
      for (int64_t shift = 0; shift < 16 / SizeOf(type); ++shift) {
        const int64_t odd = 301 + 2 * shift;
        std::vector<CheckedCall> calls = {
            {Operation::kAllReduce, type, ReduceOp::kSum, odd},
            {Operation::kReduceScatter, type, ReduceOp::kAverage, odd},
            {Operation::kAllReduce, type, ReduceOp::kMax, world_size - 1}};
        for (CheckedCall& call : calls) call.in_place = shift % 2 == 1;
        const int64_t offset = shift * SizeOf(type);
        LOCKSTEP_RETURN_IF_ERROR(
            std::get<1>(GetParam()) == Mode::kDirect
                ? CheckInGroupMemory(communicator, calls, offset)
                : CheckOnDevice(communicator, calls, offset));
      }
    }
    return std::get<1>(GetParam()) == Mode::kDirect
               ? CheckIsDirect(communicator)
               : absl::OkStatus();
  });
}

// Returns world sizes above 1. On GPUs, where creating a group takes a second,
// they are smaller.
std::vector<int> SeveralRanks(const std::vector<int>& on_standin) {
  std::vector<int> world_sizes = NcclWorldSizes(on_standin);
  std::erase(world_sizes, 1);
  return world_sizes;
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, NcclRingTest,
    testing::Combine(testing::ValuesIn(SeveralRanks({2, 3, 4, 5, 6, 7, 8})),
                     testing::Values(Mode::kRing, Mode::kDirect)),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Ranks, NcclCommunicatorTest,
    testing::Combine(testing::ValuesIn(NcclWorldSizes({1, 2, 3, 5})),
                     testing::Values(Mode::kAuto, Mode::kNative, Mode::kRing,
                                     Mode::kDirect)),
    NameOf);
INSTANTIATE_TEST_SUITE_P(
    Ranks, NcclAutoTest,
    testing::Combine(testing::ValuesIn(NcclWorldSizes({1, 2, 3, 5})),
                     testing::Values(Mode::kAuto)),
    NameOf);

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr int kLaunchedRanks = 1;  // Its NCCL cannot reach other processes.
#else
constexpr int kLaunchedRanks = 2;
#endif

TEST(NcclGroupTest, JoinsTheRanksThatALauncherStarted) {
  if (!HasNcclRanks()) return;
  const auto statuses =
      RunRanks(Backend::kProcesses, kLaunchedRanks, [](Communicator& other) {
        if (!absl::IsFailedPrecondition(CreateGroup("nccl").status())) {
          return absl::InternalError("needs no launcher");
        }
        setenv("RANK", absl::StrCat(other.rank()).c_str(), 1);
        setenv("WORLD_SIZE", absl::StrCat(kLaunchedRanks).c_str(), 1);
        setenv("LOCKSTEP_RENDEZVOUS",
               absl::StrCat(testing::TempDir(), "/nccl_group").c_str(), 1);
        LOCKSTEP_ASSIGN_OR_RETURN(const LocalRanks ranks, CreateGroup("nccl"));
        return CheckOnDevice(*ranks.front(), {ExactSum()});
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Tests of the settings that NCCL gets when ranks share GPUs, for every
// placement of three ranks.

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
    EXPECT_EQ(sharing->environment.size(), facts.one_host ? 4 : 3);
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
        {"NCCL_MAX_CTAS", facts.most == 2 ? "16" : "10"}};
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
      EXPECT_THAT(sharing->environment, IsEmpty());
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
