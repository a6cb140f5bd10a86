// What bounds a training step: the operations and the bytes that each layer
// takes, and how fast the machine can do either.
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
  // A multiplication and an addition count as two. Backward: as many for the
  // weights, and as many again for the input unless that is the image.
  int64_t forward_flops = 0, backward_flops = 0;
  // The bytes that move at least, each tensor once. Forward reads the inputs
  // and the parameters, and writes the output. Backward reads the gradient of
  // the output, the first input if a gradient depends on it, the output if
  // there is a ReLU, and the weights if a gradient depends on them; it writes
  // the gradients of the inputs, except the image's, and of the parameters. A
  // maximum's position counts as one byte. A batch norm's statistics, a few
  // numbers for each channel, do not count.
  int64_t forward_bytes = 0, backward_bytes = 0;
};
// `type`: float32 or bfloat16, here and below.
OperationWork WorkOf(const Network& network, int operation, int64_t batch,
                     DataType type);

// Of the whole step, forward and backward.
int64_t StepFlops(const Network& network, int64_t batch);

// The instructions with which the processor multiplies numbers of that type and
// adds them in float32 fastest: "AVX-512", "AVX2", "AVX-512 BF16", "AMX"; empty
// if this program knows none that it has.
std::string PeakInstructions(DataType type);

// Floating-point operations a second of `threads` threads together that do
// nothing but those instructions, on registers, for `seconds`. Error:
// kUnimplemented if there are none.
absl::StatusOr<double> MeasurePeak(DataType type, int threads, double seconds);

// The memory of a copy that caches hold: 16 MiB to 16 MiB.
inline constexpr int64_t kNearCopyBytes = int64_t{32} << 20;

// Bytes a second, read and written, of `threads` threads that together copy one
// half of `bytes` to the other, with memcpy or with stores past the caches,
// whichever is faster. Error: kResourceExhausted without memory.
absl::StatusOr<double> MeasureCopy(int threads, int64_t bytes);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_ROOFLINE_H_
