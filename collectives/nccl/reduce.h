// The arithmetic of reductions on a GPU: the step of a ring between ncclRecv
// and the next ncclSend.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "collectives/collective.h"

namespace lockstep {

// Enqueues result[i] = earlier[i] op input[i], computed in accumulators, with
// the meaning that collective.h gives it. The bits are therefore those of the
// CPU's Reduction (algorithms/reduction.h). If `divisor` is over 1, which is
// for the last step of kAverage, the result is divided by it.
//
// input: device memory of any type T. earlier, result: device memory of type T
// or AccumulatorOf(T, op). If the result's type is narrower than the
// accumulator, the result is rounded once, to nearest even. All have the same
// count, 0 allowed, and are aligned to their type. result may be the same
// memory as earlier or input if it has the same type; otherwise the buffers
// must not overlap. If all three begin at the same offset within a 16-byte
// vector, memory is accessed in vectors, otherwise one element at a time.
// Memory around the result is not touched. stream: of the current device. The
// call only enqueues. The memory must live until the stream has reached the end
// of the call. A fault in the kernel shows at the next wait. Cost: two reads
// and one write of memory per element. Errors, before anything is enqueued:
// kInvalidArgument for counts or types that do not match, misaligned or
// overlapping memory, an unknown op, a divisor without kAverage, or a bad
// stream; otherwise CudaStatus of the runtime's error.
absl::Status Reduce(ReduceOp op, ConstBuffer earlier, ConstBuffer input,
                    Buffer result, int divisor, cudaStream_t stream);

// Loads all kernels that Reduce may launch on the current device. Otherwise the
// first launch of a kernel loads it and waits for the device. Errors:
// CudaStatus's.
absl::Status LoadReduceKernels();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
