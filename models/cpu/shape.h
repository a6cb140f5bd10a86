// The shape of activations on the CPU.
#ifndef LOCKSTEP_MODELS_CPU_SHAPE_H_
#define LOCKSTEP_MODELS_CPU_SHAPE_H_

#include <cstdint>

namespace lockstep {

// N images of C channels. Activations lie channels last: element (n, c, h, w)
// is at ((n * H + h) * W + w) * C + c, without gaps.
struct Shape {
  int64_t n = 0;
  int64_t c = 0;
  int64_t h = 1;
  int64_t w = 1;

  int64_t size() const { return n * c * h * w; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_SHAPE_H_
