// The residual block of ResNet-18 and ResNet-34.
#ifndef LOCKSTEP_MODELS_CPU_RESIDUAL_H_
#define LOCKSTEP_MODELS_CPU_RESIDUAL_H_

#include <memory>
#include <optional>
#include <string>

#include "models/cpu/batch_norm_layer.h"
#include "models/cpu/convolution.h"
#include "models/cpu/layer.h"

namespace lockstep {

// The parts, named as d2l's Residual names them. The block sets their `relu`.
struct ResidualOptions {
  std::string name;  // For messages.
  ConvolutionOptions conv1, conv2;
  std::optional<ConvolutionOptions> conv3;  // Of the shortcut; none: identity.
  BatchNormLayerOptions bn1, bn2;
};

// y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), the last addition
// and ReLU being part of bn2. Gradients are ready in the order bn2, conv3,
// conv2, bn1, conv1. Planning fails with kInvalidArgument if the shortcut's
// output does not have the shape of the convolutions'.
std::unique_ptr<Layer> CreateResidual(ResidualOptions options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_RESIDUAL_H_
