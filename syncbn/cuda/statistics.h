// The statistics kernels of batch norm.
#ifndef LOCKSTEP_SYNCBN_CUDA_STATISTICS_H_
#define LOCKSTEP_SYNCBN_CUDA_STATISTICS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buffer.h"
#include "syncbn/activations.h"

namespace lockstep {

// Bytes of scratch memory that ComputeMoments needs: 16 for each block and
// channel, less than B / 16 where channels have more than some hundred values.
// Errors: kUnimplemented for a type other than float32, float16, bfloat16.
absl::StatusOr<int64_t> MomentsScratchBytes(const ActivationShape& shape,
                                            ConstBuffer x);

// BatchNormKernels::ComputeMoments on a stream of the current device; only
// enqueues. scratch: device memory [MomentsScratchBytes], aligned to 16; it
// must live until the stream has come past.
// Moves: reads B.
// Errors: as above; what the launches say.
absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                            std::byte* record, std::byte* scratch,
                            cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_STATISTICS_H_
