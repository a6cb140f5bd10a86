// Average pooling, over windows that do not overlap or over whole images.
#ifndef LOCKSTEP_MODELS_CPU_AVERAGE_POOL_H_
#define LOCKSTEP_MODELS_CPU_AVERAGE_POOL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "models/cpu/layer.h"

namespace lockstep {

// [n, c, h, w] -> [n, c, h / window, w / window]; rows and columns left over at
// the end are dropped, as PyTorch's avg_pool2d with stride = window.
std::unique_ptr<Layer> CreateAveragePool(std::string name, int64_t window);

// [n, c, h, w] -> [n, c, 1, 1]: the average over each image, as PyTorch's
// AdaptiveAvgPool2d((1, 1)).
std::unique_ptr<Layer> CreateGlobalAveragePool(std::string name);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_AVERAGE_POOL_H_
