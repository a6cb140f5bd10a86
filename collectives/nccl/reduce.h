// The reduction that a ring over ncclSend and ncclRecv needs between the two.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "base/device_span.h"

namespace lockstep {

// A NaN in either operand gives NaN, also for kMin and kMax. Zeros of both
// signs are equal to kMin and kMax, which then keep the accumulator's.
enum class ReduceOp { kSum, kProduct, kMin, kMax };

// How many threads a reduction gets.
struct ReduceShape {
  // Thread blocks at most, so that communication kernels find room beside them;
  // 0 leaves it to the device: enough to fill it.
  int max_blocks = 0;
  int threads_per_block = 256;  // In [1, 1024].
};

// Replaces accumulator[i] by accumulator[i] op incoming[i]. T is float, __half
// or __nv_bfloat16. Each element is computed in float32 and rounded once, to
// nearest even, so its bits depend on the two operands alone: not on the shape,
// the alignment, or the GPU. (NaN stays NaN; its payload is not specified.)
//
// incoming, accumulator: device memory, same size, 0 allowed, aligned to T,
// not overlapping. Where both have the same address modulo 16, memory is
// accessed 16 bytes at a time; elsewhere one element at a time. What lies
// around the accumulator is not touched.
// stream: of the current device. Only enqueues; the memory must live until the
// stream has come past. A fault in the kernel shows at the next wait.
// Cost: 3 * sizeof(T) bytes of memory traffic per element (two reads and a
// write).
// Errors, before anything is enqueued: kInvalidArgument for sizes that differ,
// misaligned or overlapping memory, an unknown op, or a bad shape or stream;
// otherwise CudaStatus of what the runtime says.
template <typename T>
absl::Status Reduce(ReduceOp op, DeviceSpan<const T> incoming,
                    DeviceSpan<T> accumulator, cudaStream_t stream,
                    const ReduceShape& shape = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_REDUCE_H_
