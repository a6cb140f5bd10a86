// A rank of oneCCL's ccl::allreduce and its siblings, for the command
// `allreduce`: allreduce_peer_oneccl LISTENER FILE. The rank, the number of
// ranks and oneCCL's settings (teams.cc) are in the environment. Rank 0 writes
// the address at which the ranks meet to FILE.
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <oneapi/ccl.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/collective.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep::benchmarks {
namespace {

using KvsPointer = ccl::shared_ptr_class<ccl::kvs>;

constexpr absl::Duration kTimeout = absl::Seconds(120);

ccl::datatype CclType(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return ccl::datatype::float64;
    case DataType::kFloat32:
      return ccl::datatype::float32;
    case DataType::kFloat16:
      return ccl::datatype::float16;
    case DataType::kBFloat16:
      return ccl::datatype::bfloat16;
    case DataType::kInt32:
      return ccl::datatype::int32;
    case DataType::kInt64:
      return ccl::datatype::int64;
    case DataType::kUInt8:
      break;
  }
  return ccl::datatype::uint8;
}

// Returns nothing for operations that oneCCL does not support in host memory.
std::optional<ccl::reduction> CclReduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ccl::reduction::sum;
    case ReduceOp::kProduct:
      return ccl::reduction::prod;
    case ReduceOp::kMin:
      return ccl::reduction::min;
    case ReduceOp::kMax:
      return ccl::reduction::max;
    case ReduceOp::kAverage:
      break;
  }
  return std::nullopt;
}

// Returns the file's bytes once another rank has written the file. Error:
// kDeadlineExceeded.
absl::StatusOr<std::string> AwaitFile(const std::string& path) {
  const absl::Time end = absl::Now() + kTimeout;
  while (true) {
    absl::StatusOr<std::string> bytes = ReadFile(path);
    if (!absl::IsNotFound(bytes.status())) return bytes;
    if (absl::Now() > end) {
      return absl::DeadlineExceededError("rank 0 has written no address");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Opens the key-value store in which the ranks find each other. Errors: the
// file system's; kDataLoss if the file holds no address; kDeadlineExceeded if
// rank 0 creates no store.
absl::StatusOr<KvsPointer> OpenStore(int rank, const std::string& path) {
  if (rank == 0) {
    KvsPointer store = ccl::create_main_kvs();
    const ccl::kvs::address_type address = store->get_address();
    LOCKSTEP_RETURN_IF_ERROR(
        ReplaceFile(path, {address.data(), address.size()}));
    return store;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, AwaitFile(path));
  ccl::kvs::address_type address;
  if (bytes.size() != address.size()) {
    return absl::DataLossError(absl::StrCat(path, " does not hold an address"));
  }
  bytes.copy(address.data(), bytes.size());
  return ccl::create_kvs(address);
}

class OneCclGroup : public PeerCommunicator {
 public:
  OneCclGroup(int rank, int world_size, KvsPointer store)
      : comm_(ccl::create_communicator(world_size, rank, std::move(store))) {}

  int rank() const override { return comm_.rank(); }
  int world_size() const override { return comm_.size(); }

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) {
      ccl::barrier(comm_).wait();
      return absl::OkStatus();
    }
    return Reduces(call.operation) ? Reduce(call) : Move(call);
  }

 private:
  absl::Status Reduce(const Collective& call) {
    const void* const from = call.input.data;
    void* const to = call.output.data;
    const auto count = static_cast<size_t>(call.output.count);
    const ccl::datatype type = CclType(call.input.type);
    const std::optional<ccl::reduction> reduction = CclReduction(call.op);
    if (!reduction.has_value()) {
      return absl::UnimplementedError(absl::StrCat(
          "oneCCL does not support ", Name(call.op), " in host memory"));
    }
    if (call.operation == Operation::kReduceScatter) {
      ccl::reduce_scatter(from, to, count, type, *reduction, comm_).wait();
    } else {
      ccl::allreduce(from, to, count, type, *reduction, comm_).wait();
    }
    return absl::OkStatus();
  }

  absl::Status Move(const Collective& call) {
    const void* const from = call.input.data;
    void* const to = call.output.data;
    const auto count = static_cast<size_t>(call.input.count);
    const ccl::datatype type = CclType(call.input.type);
    switch (call.operation) {
      case Operation::kAllGather:
        ccl::allgather(from, to, count, type, comm_).wait();
        return absl::OkStatus();
      case Operation::kBroadcast:
        ccl::broadcast(to, static_cast<size_t>(call.output.count),
                       CclType(call.output.type), call.peer, comm_)
            .wait();
        return absl::OkStatus();
      case Operation::kAllToAll:
        ccl::alltoall(from, to, count / static_cast<size_t>(world_size()), type,
                      comm_)
            .wait();
        return absl::OkStatus();
      default:
        return absl::UnimplementedError(absl::StrCat(
            "oneCCL does not support ", CollectiveName(call.operation)));
    }
  }

  ccl::communicator comm_;
};

// Sets the variables that tell oneCCL, without a launcher, which ranks share a
// host.
void SetLocalRank(const RankEnvironment& environment) {
  setenv("CCL_LOCAL_RANK", absl::StrCat(environment.local_rank).c_str(), 1);
  setenv("CCL_LOCAL_SIZE", absl::StrCat(environment.local_world_size).c_str(),
         1);
}

absl::Status Run(const std::string& listener, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment own,
                            RequireRankEnvironment());
  SetLocalRank(own);
  // oneCCL reports errors by exceptions, which become a status here.
  try {
    ccl::init();
    LOCKSTEP_ASSIGN_OR_RETURN(KvsPointer store, OpenStore(own.rank, path));
    OneCclGroup group(own.rank, own.world_size, std::move(store));
    return ServePeer(listener, group);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  using namespace lockstep::benchmarks;
  return RankMain(argc, argv, 3, [argv] { return Run(argv[1], argv[2]); });
}
