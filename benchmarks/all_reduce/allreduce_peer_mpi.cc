// A rank of Open MPI's MPI_Allreduce and its siblings, for the command
// `allreduce`: allreduce_peer_mpi LISTENER, started by mpirun.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {
namespace {

// Returns nothing for types that MPI does not support.
std::optional<MPI_Datatype> MpiType(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kUInt8:
      return MPI_UINT8_T;
    default:
      return std::nullopt;
  }
}

std::optional<MPI_Op> MpiOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return MPI_SUM;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    default:
      return std::nullopt;
  }
}

absl::Status MpiStatus(int code, const char* what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": MPI error ", code));
}

// Sets a variable of Open MPI's module "tuned". The module reads the variable
// when it creates a communicator, if coll_tuned_use_dynamic_rules is set in the
// environment.
bool SetVariable(const char* name, int value) {
  int index = 0, count = 0;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return false;
  }
  const bool set = MPI_T_cvar_write(handle, &value) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return set;
}

// Returns a communicator with the all-reduce algorithm of that number, or
// MPI_COMM_NULL if the algorithm cannot be set. The segmented ring gets a
// segment size, because without segments it would be the plain ring.
MPI_Comm CreateComm(int algorithm) {
  constexpr int kSegmentedRing = 5;
  constexpr int kSegmentBytes = 1 << 20;
  MPI_Comm comm = MPI_COMM_NULL;
  if (SetVariable("coll_tuned_allreduce_algorithm_segmentsize",
                  algorithm == kSegmentedRing ? kSegmentBytes : 0) &&
      SetVariable("coll_tuned_allreduce_algorithm", algorithm)) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  }
  return comm;
}

class MpiGroup : public PeerCommunicator {
 public:
  MpiGroup() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
    const size_t algorithms = PeerAlgorithms(TeamKind::kOpenMpi).size();
    for (size_t i = 1; i < algorithms; ++i) {
      comms_.push_back(CreateComm(static_cast<int>(i)));
    }
  }

  absl::Status SetAlgorithm(int algorithm) override {
    comm_ = comms_[static_cast<size_t>(algorithm)];
    if (comm_ != MPI_COMM_NULL) return absl::OkStatus();
    return absl::UnimplementedError("this MPI does not let programs choose it");
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) {
      return MpiStatus(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    }
    if (std::max(call.input.size_bytes(), call.output.size_bytes()) > INT_MAX) {
      return absl::UnimplementedError("MPI supports only counts below 2^31");
    }
    return Reduces(call.operation) ? Reduce(call) : Move(call);
  }

 private:
  absl::Status Reduce(const Collective& call) {
    const ConstBuffer& input = call.input;
    const Buffer& output = call.output;
    const std::optional<MPI_Datatype> type = MpiType(input.type);
    const std::optional<MPI_Op> operation = MpiOp(call.op);
    if (!type.has_value() || !operation.has_value()) {
      return absl::UnimplementedError(absl::StrCat(
          "MPI does not support ", Name(call.op), " of ", Name(input.type)));
    }
    const auto count = static_cast<int>(output.count);
    if (call.operation == Operation::kReduceScatter) {
      return MpiStatus(
          MPI_Reduce_scatter_block(input.data, output.data, count, *type,
                                   *operation, MPI_COMM_WORLD),
          "MPI_Reduce_scatter_block");
    }
    const void* const from =
        input.data == output.data ? MPI_IN_PLACE : input.data;
    return MpiStatus(
        MPI_Allreduce(from, output.data, count, *type, *operation, comm_),
        "MPI_Allreduce");
  }

  // Moves bytes, because MPI does not support all types.
  absl::Status Move(const Collective& call) {
    const auto sent = static_cast<int>(call.input.size_bytes());
    void* const to = call.output.data;
    switch (call.operation) {
      case Operation::kAllGather: {
        const std::byte* const own = call.output.bytes() + rank_ * sent;
        const bool in_place = call.input.data == own;
        return MpiStatus(
            MPI_Allgather(in_place ? MPI_IN_PLACE : call.input.data, sent,
                          MPI_BYTE, to, sent, MPI_BYTE, MPI_COMM_WORLD),
            "MPI_Allgather");
      }
      case Operation::kBroadcast:
        return MpiStatus(
            MPI_Bcast(to, sent, MPI_BYTE, call.peer, MPI_COMM_WORLD),
            "MPI_Bcast");
      case Operation::kAllToAll: {
        const int part = sent / world_size_;
        return MpiStatus(MPI_Alltoall(call.input.data, part, MPI_BYTE, to, part,
                                      MPI_BYTE, MPI_COMM_WORLD),
                         "MPI_Alltoall");
      }
      default:
        return absl::UnimplementedError(
            absl::StrCat(Name(call.operation), " is not measured with MPI"));
    }
  }

  int rank_ = 0;
  int world_size_ = 1;
  // The communicators, by PeerAlgorithms, and the chosen one.
  std::vector<MPI_Comm> comms_ = {MPI_COMM_WORLD};
  MPI_Comm comm_ = MPI_COMM_WORLD;
};

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  using namespace lockstep::benchmarks;
  MPI_Init(nullptr, nullptr);
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  const int status = RankMain(argc, argv, 2, [argv] {
    MpiGroup group;
    return ServePeer(argv[1], group);
  });
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_T_finalize();
  MPI_Finalize();
  return 0;
}
