// ResNet-18 as the d2l chapter on multi-GPU training modifies it.
#ifndef LOCKSTEP_MODELS_RESNET18_H_
#define LOCKSTEP_MODELS_RESNET18_H_

#include <cstdint>
#include <memory>

#include "models/model.h"

namespace lockstep {

// images [n, 1, s, s] -> conv 64@3x3, padding 1, batch norm, ReLU -> two
// residual blocks each of 64, 128, 256 and 512 channels, the first of the last
// three with stride 2 and a 1x1 convolution as its shortcut -> global average
// pool -> linear 10. Every convolution has a bias; there is no max-pool.
//
// Parameters and buffers are named and ordered as in the state_dict of that
// PyTorch module ("0.weight", "resnet_block2.0.conv3.bias", "fc.1.weight").
// Initial values are those that PyTorch gives after manual_seed(seed), the
// module's construction, and the chapter's init_weights: convolution and linear
// weights normal times 0.01, their biases PyTorch's default; batch norm 1 and
// 0, and its running statistics 0 and 1.
//
// image_size: s, at least 1. On the CPU, through oneDNN, on the calling
// thread's OpenMP threads. 11.2 million parameters; takes a third of a second.
std::unique_ptr<Model> CreateResNet18(uint64_t seed, int64_t image_size = 28);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_RESNET18_H_
