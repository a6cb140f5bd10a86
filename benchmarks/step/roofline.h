// The bounds of a training step: the operations and the bytes of each layer,
// and the speed at which the machine computes and copies.
#ifndef LOCKSTEP_BENCHMARKS_STEP_ROOFLINE_H_
#define LOCKSTEP_BENCHMARKS_STEP_ROOFLINE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/networks/network.h"

namespace lockstep::benchmarks {

// One operation of a network over a batch.
struct OperationWork {
  // The operations; a multiplication and an addition count as two. Backward has
  // as many for the weights, and as many again for the input unless the input
  // is the image.
  int64_t forward_flops = 0, backward_flops = 0;
  // The least number of bytes that move, each tensor once. Forward reads the
  // inputs and the parameters, and writes the output. Backward reads the
  // gradient of the output, and the output if there is a ReLU. Backward reads
  // the first input and the weights if a gradient depends on them. Backward
  // writes the gradients of the inputs, except the image's, and of the
  // parameters. The position of a maximum counts as one byte. The statistics of
  // a batch norm, a few numbers for each channel, do not count.
  int64_t forward_bytes = 0, backward_bytes = 0;
};
// Returns the work of one operation. type: float32 or bfloat16, here and below.
OperationWork WorkOf(const Network& network, int operation, int64_t batch,
                     DataType type);

// Returns the operations of the whole step, forward and backward.
int64_t StepFlops(const Network& network, int64_t batch);

// Returns the name of the instructions with which the processor fastest
// multiplies numbers of that type and adds the products in float32: "AVX-512",
// "AVX2", "AVX-512 BF16" or "AMX". Empty if this program knows none that the
// processor has.
std::string PeakInstructions(DataType type);

// Returns the floating-point operations a second of `threads` threads together.
// For `seconds` the threads run only the instructions of PeakInstructions, on
// registers. Error: kUnimplemented if there are none.
absl::StatusOr<double> MeasurePeak(DataType type, int threads, double seconds);

// The memory of a copy that fits into caches: 16 MiB to 16 MiB.
inline constexpr int64_t kNearCopyBytes = int64_t{32} << 20;

// Returns the bytes a second, read and written, of `threads` threads that
// together copy one half of `bytes` to the other half. Uses memcpy or stores
// past the caches, whichever is faster. Error: kResourceExhausted if memory is
// short.
absl::StatusOr<double> MeasureCopy(int threads, int64_t bytes);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_ROOFLINE_H_
