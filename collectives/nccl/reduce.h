// The arithmetic of reductions on a GPU: what a ring over ncclSend and ncclRecv
// needs between the two.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "collectives/collective.h"

namespace lockstep {

// result[i] = earlier[i] op input[i], computed in accumulators, with the
// meaning that collective.h gives it, so that the bits are those of the CPU's
// Reduction (algorithms/reduction.h). With `divisor` over 1, which is for the
// last step of kAverage, the result is divided by it.
//
// input: device memory of any type T. earlier, result: device memory of type T
// or AccumulatorOf(T, op); where that is narrower, the result is rounded once,
// to nearest even. All have the same count, 0 allowed, and are aligned to their
// type. result may be the same memory as earlier or input where it has their
// type; otherwise they do not overlap. Where the three begin at the same place
// of a 16-byte vector, memory is accessed so; elsewhere one element at a time.
// What lies around the result is not touched.
// stream: of the current device. Only enqueues; the memory must live until the
// stream has come past. A fault in the kernel shows at the next wait.
// Cost: two reads and a write of memory per element.
// Errors, before anything is enqueued: kInvalidArgument for counts or types
// that do not fit, misaligned or overlapping memory, an unknown op, a divisor
// without kAverage, or a bad stream; otherwise CudaStatus of what the runtime
// says.
absl::Status Reduce(ReduceOp op, ConstBuffer earlier, ConstBuffer input,
                    Buffer result, int divisor, cudaStream_t stream);

// Loads all kernels that Reduce may launch on the current device. A kernel that
// is loaded by its first launch waits for the device. Errors: CudaStatus's.
absl::Status LoadReduceKernels();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
