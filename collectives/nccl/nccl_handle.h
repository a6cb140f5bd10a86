// One NCCL communicator: how ranks agree to make it, also where several share a
// GPU, NCCL's names for our types and operations, and its results as statuses.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// OK for ncclSuccess. Otherwise a message of the form
//   <what>: NCCL error 5: invalid usage
// with the code
//   kInvalidArgument  for a bad argument or usage,
//   kUnavailable      for an error of another rank, or of the way to it,
//   kInternal         for everything else; ncclInProgress too, which is neither
//                     success nor failure: poll before asking.
absl::Status NcclStatus(ncclResult_t result, absl::string_view what);

constexpr ncclDataType_t NcclType(DataType type) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat64,  ncclFloat32, ncclFloat16,
                                       ncclBfloat16, ncclInt32,   ncclInt64,
                                       ncclUint8};
  static_assert(std::size(kTypes) == std::size(kAllDataTypes));
  return kTypes[static_cast<size_t>(type)];
}

constexpr ncclRedOp_t NcclOp(ReduceOp op) {
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
  static_assert(std::size(kOps) == std::size(kAllReduceOps));
  return kOps[static_cast<size_t>(op)];
}

// Calls NCCL for what it has a call for: kAllReduce, kReduce, kReduceScatter,
// kAllGather of equal counts, kBroadcast; ncclInvalidUsage for all else. Bytes
// are as good as elements where nothing is reduced, and need no alignment.
ncclResult_t IssueNative(const Collective& call, int rank, ncclComm_t comm,
                         cudaStream_t stream);

// Whether NCCL reduces with the meaning that collective.h gives the operation,
// but for the order. It does not for
//   16-bit floats        rounded at every addition;
//   averages of integers the sum wraps in the type;
//   min, max of floats   a NaN may be dropped.
// (Averages of float32 and float64 are sums of products with 1/P: as accurate.)
constexpr bool NcclKeepsMeaning(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return false;
    case DataType::kFloat32:
    case DataType::kFloat64:
      return op != ReduceOp::kMin && op != ReduceOp::kMax;
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
      break;
  }
  return op != ReduceOp::kAverage;
}

// Where a rank runs.
struct RankPlace {
  std::array<char, 16> gpu_uuid = {};
  uint64_t host = 0;     // The same for ranks of one host, else different.
  uint64_t process = 0;  // The same for ranks of one process of a host.
};

struct GpuSharing {
  bool shared = false;  // Whether any two ranks have one GPU.
  // What `rank` sets before its process's first call of NCCL, unless it is set
  // already. Empty if not shared.
  std::map<std::string, std::string> environment = {};
};

// A function of its arguments alone; `shared` and errors are the same for every
// rank. ranks: in rank order. nccl_version: as ncclGetVersion gives it.
//
// Before 2.30 NCCL refuses two ranks with one GPU on one host, so every process
// calls itself a host (NCCL_HOSTID), which talk over the loopback interface if
// they are really one. From 2.30 on it can be asked to allow it.
// Error: kFailedPrecondition if two ranks share a GPU and a process, and NCCL
// is older than 2.30: one process has one NCCL_HOSTID.
absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankPlace> ranks,
                                          int rank, int nccl_version);

// What rank 0 decides for the group. Travels as bytes.
struct NcclSetup {
  ncclUniqueId id = {};
  Algorithm algorithm = Algorithm::kAuto;
  bool nccl_arithmetic = false;
  int64_t chunk_bytes = 0;
};

// Whether any two ranks share a GPU. Sets the variables of the environment that
// NCCL then needs, and `also`, where they are not set yet. Every rank calls it,
// before any other call of NCCL. `own`: whether this rank could begin at all;
// its error is then every rank's. Errors: PlanGpuSharing's, CUDA's, those of
// ShareStatus.
absl::StatusOr<bool> ShareGpus(
    Communicator& control, int device, const absl::Status& own,
    const std::map<std::string, std::string>& also = {});

// Fills in the unique id on rank 0 and gives every rank rank 0's setup.
absl::Status ExchangeSetup(Communicator& control, NcclSetup& setup);

// Calls `fn` in a thread of its own and returns its status. kDeadlineExceeded
// if it takes longer than `timeout`: the thread is then left to itself.
absl::Status RunWithin(absl::Duration timeout,
                       std::function<absl::Status()> fn);

// A blocking communicator, whose calls return once they are on their streams;
// the first one between two ranks waits for the other. One thread uses it, and
// another one may call Health and Abort meanwhile.
class NcclHandle {
 public:
  NcclHandle() = default;
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Joins, on `device`, and waits for the others. Once. Errors: NCCL's;
  // kDeadlineExceeded if that takes longer than `timeout`: what NCCL has begun
  // is then left behind, since nothing can end it.
  absl::Status Init(const ncclUniqueId& id, int rank, int world_size,
                    int device, absl::Duration timeout);

  // Calls `issue`, which calls NCCL with comm(), as one group. Errors: NCCL's;
  // kAborted after Abort.
  absl::Status Group(absl::FunctionRef<ncclResult_t()> issue);
  // The same, for calls that no group can have.
  absl::Status Call(absl::FunctionRef<ncclResult_t(ncclComm_t)> call);

  // Within `issue`: bytes, so that any type and alignment will do. Nothing for
  // no bytes.
  ncclResult_t Send(ConstBuffer data, int peer, cudaStream_t stream) const;
  ncclResult_t Receive(Buffer data, int peer, cudaStream_t stream) const;

  // A group of both, with two peers or one.
  absl::Status Exchange(ConstBuffer sent, int to, Buffer received, int from,
                        cudaStream_t stream);

  // What went wrong on its streams since.
  absl::Status Health() const;

  // Ends what is on its streams; the memory is then free. A call that waits for
  // another rank returns an error.
  void Abort();

  // Ends it in health: all calls have ended on all ranks, and the ranks of a
  // host do this together. Graphs that captured its calls are gone. Waits at
  // most `timeout`, as Init.
  void Destroy(absl::Duration timeout);

  ncclComm_t comm() const { return comm_; }

 private:
  std::mutex calls_;  // Held in a call of NCCL by the thread that uses it.
  std::atomic<ncclComm_t> comm_ = nullptr;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
