// Tests of the nccl backend's results. With the stand-in they need no GPU. With
// CUDA and NCCL they run on the available GPUs, if necessary several ranks on
// one.
#include "collectives/nccl/nccl_communicator.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
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
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;

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

}  // namespace
}  // namespace lockstep
