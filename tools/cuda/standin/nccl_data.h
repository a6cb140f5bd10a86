// What NCCL's stand-in does to the memory of ranks whose calls have met.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_DATA_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_DATA_H_

#include <cstddef>
#include <span>

#include "tools/cuda/standin/include/nccl.h"
#include "tools/cuda/standin/nccl_faults.h"

namespace lockstep::standin {

enum class NcclCall {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};

// One rank's call.
struct NcclOperation {
  NcclCall call;
  const void* send;
  void* receive;
  size_t count;  // As the function's argument has it.
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // Or root.
};

// 0 for a type that is not modelled.
size_t SizeOf(ncclDataType_t type);

// Bytes that a call of `size` ranks reads from `send`, and writes to `receive`;
// 0 where `rank` does not use it.
size_t SentBytes(const NcclOperation& operation, int rank, int size);
size_t ReceivedBytes(const NcclOperation& operation, int rank, int size);

// Whether calls of two ranks, kSend and kReceive aside, fit together.
bool Fit(const NcclOperation& a, const NcclOperation& b);

// Runs a collective: element r is rank r's call, and all fit together.
// Reductions add rank after rank, in the elements' own type; averages of
// floating-point numbers scale each rank's first, as NCCL does.
void MoveCollective(std::span<const NcclOperation* const> operations,
                    Damage damage);
// Runs a send and the receive that it meets.
void MoveMessage(const NcclOperation& send, const NcclOperation& receive,
                 Damage damage);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_DATA_H_
