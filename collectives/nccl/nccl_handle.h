// One NCCL communicator: how ranks agree on its creation; NCCL's names for our
// types and operations; its results as statuses.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Returns OK for ncclSuccess. Otherwise returns a message of the form
//   <what>: NCCL error 5: invalid usage
// with the code
//   kInvalidArgument  for a bad argument or usage,
//   kUnavailable      for an error of another rank, or of the path to it,
//   kInternal         for everything else; also for ncclInProgress, which is
//                     neither success nor failure: poll before calling this.
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

// Issues the call as one NCCL call if NCCL has one: kAllReduce, kReduce,
// kReduceScatter, kAllGather of equal counts, kBroadcast. Returns
// ncclInvalidUsage for all other operations. Calls that reduce nothing are
// issued on bytes, and need no alignment.
ncclResult_t IssueNative(const Collective& call, int rank, ncclComm_t comm,
                         cudaStream_t stream);

// Returns whether NCCL reduces with the meaning that collective.h gives the
// operation, apart from the order. NCCL differs for
//   16-bit floats         rounded at every addition;
//   averages of integers  the sum wraps in the type;
//   min, max of floats    a NaN may be dropped.
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

// Rank 0's decisions for the group. Sent as bytes.
struct NcclSetup {
  ncclUniqueId id = {};
  Algorithm algorithm = Algorithm::kAuto;
  bool nccl_arithmetic = false;
  int64_t chunk_bytes = 0;
};

// Creates the unique id on rank 0, and gives rank 0's setup to every rank.
absl::Status ExchangeSetup(Communicator& control, NcclSetup& setup);

// Returns the status of the lowest rank that cannot join NCCL, with its rank;
// OK if every rank can. Every rank must call it.
absl::Status ShareJoining(Communicator& control, const absl::Status& own);

// A blocking NCCL communicator: its calls return once they are on their
// streams, and the first call between two ranks waits for the other rank. One
// thread uses the handle; meanwhile, another thread may call Health and Abort.
class NcclHandle {
 public:
  NcclHandle() = default;
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Joins on `device` with the ranks of the control group, which all must call
  // this. May be called once. If a rank fails or dies, all ranks get its error
  // at once: while they join, they tell each other how far they are. Their
  // calls of NCCL then keep running, since nothing can end them. Errors:
  // NCCL's; kDeadlineExceeded if joining takes longer than `timeout`; the
  // control group's.
  absl::Status Init(Communicator& control, const ncclUniqueId& id, int device,
                    absl::Duration timeout);

  // Calls `issue`, which calls NCCL with comm(), as one group. Errors: NCCL's;
  // kAborted after Abort.
  absl::Status Group(absl::FunctionRef<ncclResult_t()> issue);
  // The same for calls that cannot be part of a group.
  absl::Status Call(absl::FunctionRef<ncclResult_t(ncclComm_t)> call);

  // For use within `issue`. Transfers bytes, so any type and alignment is
  // allowed. Does nothing for no bytes.
  ncclResult_t Send(ConstBuffer data, int peer, cudaStream_t stream) const;
  ncclResult_t Receive(Buffer data, int peer, cudaStream_t stream) const;

  // Sends and receives in one group, with two ranks or one.
  absl::Status Exchange(ConstBuffer sent, int to, Buffer received, int from,
                        cudaStream_t stream);

  // Returns the error that NCCL has reported since the last call, if any.
  absl::Status Health() const;

  // Ends the communicator's work on its streams; its memory is then free. A
  // call that waits for another rank returns an error.
  void Abort();

  // Finalizes and destroys the communicator. All calls must have ended on all
  // ranks, graphs that captured its calls must be destroyed, and the ranks of a
  // host must call this together. Waits at most `timeout`, as Init does.
  void Destroy(absl::Duration timeout);

  ncclComm_t comm() const { return comm_; }

 private:
  std::mutex calls_;  // The calling thread holds it during an NCCL call.
  std::atomic<ncclComm_t> comm_ = nullptr;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
