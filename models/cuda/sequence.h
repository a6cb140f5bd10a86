// The order of values in a transformer on a GPU: patches and the class token,
// and the heads of attention.
#ifndef LOCKSTEP_MODELS_CUDA_SEQUENCE_H_
#define LOCKSTEP_MODELS_CUDA_SEQUENCE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// All memory is device float32; all calls enqueue on a stream of the current
// device. Errors: those of the launches.

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadSequenceKernels();

// n sequences of `length` positions with `width` channels.
struct SequenceShape {
  int64_t n = 0;
  int64_t length = 1;
  int64_t width = 1;
};

// y [n, length, width] = the class token [width], then the patches [n, length
// - 1, width], plus the position embedding [length, width].
absl::Status EmbedForward(const SequenceShape& shape, const float* patches,
                          const float* token, const float* position, float* y,
                          cudaStream_t stream);

// Overwrites the gradients of position and token with sums over samples in
// their order, and dpatches, unless that is null.
absl::Status EmbedBackward(const SequenceShape& shape, const float* dy,
                           float* dpatches, float* dtoken, float* dposition,
                           cudaStream_t stream);

// y [n, width] = the first position of x; and dx = its gradient, which is 0 in
// the other positions.
absl::Status FirstPositionForward(const SequenceShape& shape, const float* x,
                                  float* y, cudaStream_t stream);
absl::Status FirstPositionBackward(const SequenceShape& shape, const float* dy,
                                   float* dx, cudaStream_t stream);

// `parts` matrices for each head of each sample (query, key and value, or one
// alone). A sequence has [n, length, parts, heads, size]. Split by heads, part
// p begins at p * part_stride and is [n, heads, length, size].
struct HeadShape {
  int64_t n = 0;
  int64_t length = 1;
  int64_t parts = 1;
  int64_t heads = 1;
  int64_t size = 1;
  int64_t part_stride = 0;  // In floats; at least n * heads * length * size.
};

// Copy from the order of a sequence to that of heads, and back.
absl::Status SplitHeads(const HeadShape& shape, const float* sequence,
                        float* heads, cudaStream_t stream);
absl::Status JoinHeads(const HeadShape& shape, const float* heads,
                       float* sequence, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_SEQUENCE_H_
