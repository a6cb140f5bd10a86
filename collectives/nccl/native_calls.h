// Our collectives as NCCL's own calls.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NATIVE_CALLS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NATIVE_CALLS_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"

namespace lockstep {

// Enqueues a valid call, of device memory, on `stream`; it is done when the
// stream has come past. Reductions are NCCL's, and their memory is aligned to
// its elements; scatter, gather, all-to-all and all-gather of unequal counts
// are groups of messages. kBarrier, kAllocate and kSplit move nothing.
// Errors: NcclHandle::Group's, CudaStatus's.
absl::Status EnqueueNative(const Collective& call, int rank, int world_size,
                           NcclHandle& handle, cudaStream_t stream,
                           CallProgress& progress);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NATIVE_CALLS_H_
