// The order of values in a transformer on a GPU: patches and the class token,
// and the heads of attention.
#ifndef LOCKSTEP_MODELS_CUDA_SEQUENCE_H_
#define LOCKSTEP_MODELS_CUDA_SEQUENCE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"

namespace lockstep {

// All memory is device memory: activations of the shape's type, as `void`, and
// parameters and their gradients of float32, as are all sums. All calls enqueue
// on a stream of the current device. Errors: kUnimplemented for a type that is
// not float32, float16 or bfloat16; those of the launches.

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadSequenceKernels();

// n sequences of `length` positions with `width` channels.
struct SequenceShape {
  int64_t n = 0;
  int64_t length = 1;
  int64_t width = 1;
  DataType type = DataType::kFloat32;
};

// y [n, length, width] = the class token [width], then the patches [n, length
// - 1, width], plus the position embedding [length, width].
absl::Status EmbedForward(const SequenceShape& shape, const void* patches,
                          const float* token, const float* position, void* y,
                          cudaStream_t stream);

// Overwrites the gradients of position and token with sums over samples in
// their order, and dpatches, unless that is null.
absl::Status EmbedBackward(const SequenceShape& shape, const void* dy,
                           void* dpatches, float* dtoken, float* dposition,
                           cudaStream_t stream);

// y [n, width] = the first position of x; and dx = its gradient, which is 0 in
// the other positions.
absl::Status FirstPositionForward(const SequenceShape& shape, const void* x,
                                  void* y, cudaStream_t stream);
absl::Status FirstPositionBackward(const SequenceShape& shape, const void* dy,
                                   void* dx, cudaStream_t stream);

// `parts` matrices for each head of each sample (query, key and value, or one
// alone). A sequence has [n, length, parts, heads, size]. Split by heads, part
// p begins at p * part_stride and is [n, heads, length, size].
struct HeadShape {
  int64_t n = 0;
  int64_t length = 1;
  int64_t parts = 1;
  int64_t heads = 1;
  int64_t size = 1;
  int64_t part_stride = 0;  // In elements; at least n * heads * length * size.
  DataType type = DataType::kFloat32;
};

// Copy from the order of a sequence to that of heads, and back.
absl::Status SplitHeads(const HeadShape& shape, const void* sequence,
                        void* heads, cudaStream_t stream);
absl::Status JoinHeads(const HeadShape& shape, const void* heads,
                       void* sequence, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_SEQUENCE_H_
