// 2-D convolution with bias, perhaps followed by ReLU.
#ifndef LOCKSTEP_MODELS_CPU_CONVOLUTION_H_
#define LOCKSTEP_MODELS_CPU_CONVOLUTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "models/cpu/layer.h"

namespace lockstep {

struct ConvolutionOptions {
  std::string name;  // For messages.
  int weights = 0;   // Index of [out_channels, c, kernel, kernel].
  int bias = 0;      // Index of [out_channels].
  int64_t out_channels = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;  // Zeros on each side.
  bool relu = false;
};

// [n, c, h, w] -> [n, out_channels, h', w'] with
// h' = (h + 2 padding - kernel) / stride + 1, w' alike: a cross-correlation, as
// PyTorch's conv2d. With ReLU a NaN becomes 0.
std::unique_ptr<Layer> CreateConvolution(ConvolutionOptions options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_CONVOLUTION_H_
