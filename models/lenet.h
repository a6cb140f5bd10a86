// LeNet as the d2l chapter on multi-GPU training writes it.
#ifndef LOCKSTEP_MODELS_LENET_H_
#define LOCKSTEP_MODELS_LENET_H_

#include <cstdint>
#include <memory>

#include "models/model.h"

namespace lockstep {

// images [n, 1, 28, 28] -> conv 20@3x3, ReLU, average pool 2x2 -> conv 50@5x5,
// ReLU, average pool 2x2 -> [n, 800] -> linear 128, ReLU -> linear 10.
// Parameters, named as there: W1 [20,1,3,3], b1 [20], W2 [50,20,5,5], b2 [50],
// W3 [800,128], b3 [128], W4 [128,10], b4 [10]; weights drawn from a normal
// distribution times 0.01 (the same draws as PyTorch's randn after
// manual_seed(seed)), biases zero. On the CPU, through oneDNN, on the calling
// thread's OpenMP threads.
std::unique_ptr<Model> CreateLeNet(uint64_t seed);

// The same with batch norm (torch.nn.BatchNorm2d with its defaults) after each
// convolution, before its ReLU: parameters bn1.weight, bn1.bias [20], bn2.*
// [50] after the convolution's; buffers bn1.running_mean, bn1.running_var,
// bn1.num_batches_tracked, bn2.*.
std::unique_ptr<Model> CreateLeNetWithBatchNorm(uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_LENET_H_
