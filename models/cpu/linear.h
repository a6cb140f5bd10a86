// Fully connected layer, perhaps followed by ReLU.
#ifndef LOCKSTEP_MODELS_CPU_LINEAR_H_
#define LOCKSTEP_MODELS_CPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "models/cpu/layer.h"

namespace lockstep {

struct LinearOptions {
  std::string name;  // For messages.
  int weights = 0;   // Index of [c * h * w, out_features]: y = x W + b.
  int bias = 0;      // Index of [out_features].
  int64_t out_features = 1;
  bool relu = false;
  // The weights are [out_features, c * h * w] instead, as torch.nn.Linear
  // stores them: y = x W^T + b.
  bool outputs_first = false;
};

// [n, c, h, w] -> [n, out_features, 1, 1]. The weights' rows (or columns, with
// outputs_first) count the features
// of a sample in the order c, h, w (what PyTorch's flatten gives), although the
// activations lie channels last. With ReLU a NaN becomes 0.
std::unique_ptr<Layer> CreateLinear(LinearOptions options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LINEAR_H_
