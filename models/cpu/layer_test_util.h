// Runs one layer forward and backward on numbers whose sums are exact.
#ifndef LOCKSTEP_MODELS_CPU_LAYER_TEST_UTIL_H_
#define LOCKSTEP_MODELS_CPU_LAYER_TEST_UTIL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/cpu/layers.h"
#include "models/model.h"

namespace lockstep {

// Integers in [-limit, limit], scattered. Sums of fewer than 2^24 / (a * b)
// products of integers of limits a and b are exact in float32 in any order, so
// that tests of layers need no tolerance.
std::vector<float> Integers(int64_t size, int limit, uint32_t seed);

// The limits that the tests use: inputs need more bits than bfloat16 has, so
// that a layer which rounds to that is seen; 500 * 7 * 4793 < 2^24.
inline constexpr int kInputLimit = 500;
inline constexpr int kOtherLimit = 7;

// Index of (n, c, h, w), channels last.
int64_t At(const Shape& shape, int64_t n, int64_t c, int64_t h, int64_t w);

struct LayerRun {
  Shape output;
  std::vector<float> x, y, dy, dx;  // dx is empty if not wanted.
  std::vector<int> ready;           // In the order of the calls.
};

// Plans `layer` and runs it on Integers: x up to kInputLimit, dy up to
// kOtherLimit. Every buffer that the layer writes starts as NaN and has guard
// zones, which are checked (kInternal).
//
// buffers: for layers that have some.
absl::StatusOr<LayerRun> RunLayer(const Layer& layer, Parameters& parameters,
                                  const Shape& input, bool input_gradient,
                                  Buffers* buffers = nullptr);

// OK if got[i] is within tolerance of want[i] for every i and the sizes are
// equal; a NaN is not. Else kDataLoss with the first difference.
absl::Status CheckNear(std::span<const float> got, std::span<const double> want,
                       double tolerance = 0);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LAYER_TEST_UTIL_H_
