// Compiled without contraction of a * b + c: see BUILD.bazel.
#include "models/sgd.h"

#include <cassert>
#include <cstddef>

namespace lockstep {

void SgdUpdate(std::span<float> values, std::span<const float> gradients,
               float learning_rate) {
  assert(values.size() == gradients.size());
  float* __restrict value = values.data();
  const float* __restrict gradient = gradients.data();
  for (size_t i = 0; i < values.size(); ++i) {
    value[i] -= learning_rate * gradient[i];
  }
}

}  // namespace lockstep
