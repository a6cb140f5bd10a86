// How activations lie in memory.
#ifndef LOCKSTEP_SYNCBN_ACTIVATIONS_H_
#define LOCKSTEP_SYNCBN_ACTIVATIONS_H_

#include <cstdint>

#include "base/data_types.h"

namespace lockstep {

enum class Layout {
  kNchw,  // Channels first: element (n, c, i) is at (n * c_size + c) * hw + i.
  kNhwc,  // Channels last: it is at (n * hw + i) * c_size + c.
};

// "nchw", "nhwc".
constexpr const char* Name(Layout layout) {
  return layout == Layout::kNchw ? "nchw" : "nhwc";
}

// n samples of c channels of hw pixels (or none, with hw = 1), contiguous.
struct ActivationShape {
  int64_t n = 0;  // 0 allowed.
  int64_t c = 1;
  int64_t hw = 1;
  Layout layout = Layout::kNchw;

  constexpr int64_t size() const { return n * c * hw; }
  constexpr int64_t values_per_channel() const { return n * hw; }

  friend bool operator==(const ActivationShape&,
                         const ActivationShape&) = default;
};

// The types that activations may have: float32, float16, bfloat16, and on the
// CPU float64.
constexpr bool IsActivationType(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16 || type == DataType::kFloat64;
}

// What statistics, parameters and their gradients are held in for activations
// of `type`: float64 for float64, else float32.
constexpr DataType StatisticsTypeOf(DataType type) {
  return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_ACTIVATIONS_H_
