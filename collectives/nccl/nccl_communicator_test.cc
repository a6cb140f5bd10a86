// The nccl backend's results. Linked with the stand-in it needs no GPU; with
// CUDA and NCCL it runs on the GPUs there are, several ranks on one if need be.
#include "collectives/nccl/nccl_communicator.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/nccl/nccl_check.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

enum class Mode { kAuto, kNative, kRing };

struct Case {
  int world_size;
  Mode mode;
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"Auto", "Native", "Ring"};
  return absl::StrCat(kNames[static_cast<int>(info.param.mode)], "P",
                      info.param.world_size);
}

NcclOptions OptionsOf(Mode mode) {
  NcclOptions options;
  options.group.algorithm =
      mode == Mode::kRing ? Algorithm::kRing : Algorithm::kAuto;
  options.nccl_arithmetic = mode == Mode::kNative;
  // Several windows of chunks at a thousand elements.
  options.chunk_bytes = 256;
  return options;
}

// Whether an average is a sum of products with 1/P, which need not be exact.
bool Scales(Mode mode, DataType type, ReduceOp op) {
  if (op != ReduceOp::kAverage || mode == Mode::kRing) return false;
  return type == DataType::kFloat32 || type == DataType::kFloat64 ||
         (mode == Mode::kNative &&
          (type == DataType::kFloat16 || type == DataType::kBFloat16));
}

class NcclCommunicatorTest : public testing::TestWithParam<Case> {
 protected:
  // Runs `fn` on every rank; all must succeed. Without a GPU the test is
  // skipped, or fails where the environment says that there must be one.
  static void RunOk(const NcclRankFunction& fn) {
    const std::vector<absl::Status> statuses =
        RunNcclRanks(GetParam().world_size, OptionsOf(GetParam().mode), fn);
    for (const absl::Status& status : statuses) {
      const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
      const bool may_skip =
          required == nullptr || std::string_view(required) != "1";
      if (absl::IsNotFound(status) && may_skip) {
        GTEST_SKIP() << std::string(status.message());
      }
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

TEST_P(NcclCommunicatorTest, ReducesEveryTypeByEveryOperation) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const DataType type : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        for (const Operation operation :
             {Operation::kAllReduce, Operation::kReduce,
              Operation::kReduceScatter}) {
          for (const int64_t count : {1, 67}) {
            DeviceCall call = {operation, type, op, count};
            call.root = communicator.world_size() - 1;
            call.in_place = count == 67;
            call.scales = Scales(GetParam().mode, type, op);
            LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, ReducesEveryCount) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const Operation operation : {Operation::kAllReduce, Operation::kReduce,
                                      Operation::kReduceScatter}) {
      for (const int64_t count : {0, 1, 2, 3, 4, 5, 6, 7, 127, 1000, 1283}) {
        for (const bool in_place : {false, true}) {
          DeviceCall call = {operation, DataType::kFloat32, ReduceOp::kSum,
                             count};
          call.in_place = in_place;
          LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, MovesToAndFromEveryRank) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const Operation operation :
         {Operation::kBroadcast, Operation::kScatter, Operation::kGather,
          Operation::kSend, Operation::kReduce}) {
      for (int root = 0; root < communicator.world_size(); ++root) {
        for (const int64_t count : {0, 1, 13}) {
          DeviceCall call = {operation, DataType::kInt32, ReduceOp::kSum, count,
                             root};
          for (const bool in_place : {false, true}) {
            call.in_place = in_place;
            LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, GathersAndExchangesEveryType) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const DataType type : kAllDataTypes) {
      for (const int64_t count : {0, 1, 13}) {
        DeviceCall call = {Operation::kAllToAll, type, ReduceOp::kSum, count};
        LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
        call.operation = Operation::kAllGather;
        for (const bool in_place : {false, true}) {
          for (const bool unequal : {false, true}) {
            call.in_place = in_place;
            call.unequal = unequal;
            LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, MovesUnalignedMemory) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const Operation operation :
         {Operation::kBroadcast, Operation::kScatter, Operation::kGather,
          Operation::kSend, Operation::kAllToAll, Operation::kAllGather}) {
      DeviceCall call = {operation, DataType::kFloat64, ReduceOp::kSum, 13};
      call.offset = 1;
      LOCKSTEP_RETURN_IF_ERROR(Check(communicator, call));
    }
    return absl::OkStatus();
  });
}

class NcclRingTest : public NcclCommunicatorTest {};

TEST_P(NcclRingTest, GivesTheBitsOfTheCpu) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (const DataType type : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        for (const int64_t count : {1, 3, 301}) {
          LOCKSTEP_RETURN_IF_ERROR(
              CheckRingBits(communicator, type, op, count));
        }
      }
    }
    return absl::OkStatus();
  });
}

class NcclAutoTest : public NcclCommunicatorTest {};

// Where NCCL's arithmetic is not collective.h's, kAuto takes the ring.
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

TEST_P(NcclCommunicatorTest, AllocatesZeroedMemory) {
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

TEST_P(NcclCommunicatorTest, SplitsIntoGroupsThatWork) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    const int rank = communicator.rank();
    // Even ranks in reverse order; odd ranks but the last; that one in none.
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
      LOCKSTEP_RETURN_IF_ERROR(Check(
          *part,
          {Operation::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 67}));
    }
    return Check(communicator, {Operation::kAllReduce, DataType::kFloat32,
                                ReduceOp::kSum, 67});
  });
}

TEST_P(NcclCommunicatorTest, MeetsAtBarriers) {
  RunOk([](NcclCommunicator& communicator) -> absl::Status {
    for (int i = 0; i < 10; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    }
    return absl::OkStatus();
  });
}

std::vector<Case> Cases(const std::vector<Mode>& modes) {
  std::vector<Case> cases;
  for (const int world_size : {1, 2, 3, 5}) {
    for (const Mode mode : modes) cases.push_back({world_size, mode});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCommunicatorTest,
                         testing::ValuesIn(Cases({Mode::kAuto, Mode::kNative,
                                                  Mode::kRing})),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ranks, NcclRingTest,
                         testing::ValuesIn(Cases({Mode::kRing})), NameOf);
INSTANTIATE_TEST_SUITE_P(Ranks, NcclAutoTest,
                         testing::ValuesIn(Cases({Mode::kAuto})), NameOf);

}  // namespace
}  // namespace lockstep
