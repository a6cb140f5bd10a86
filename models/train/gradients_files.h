// Inputs for the gradients command, and what to compare its outputs with.
#ifndef LOCKSTEP_MODELS_TRAIN_GRADIENTS_FILES_H_
#define LOCKSTEP_MODELS_TRAIN_GRADIENTS_FILES_H_

#include <cstdint>
#include <vector>

#include "models/io/safetensors.h"
#include "models/model.h"

namespace lockstep {

// A model's parameters and buffers, as weights files have them.
Safetensors WeightsOf(Model& model);

// n images of noise in [0, 1), and labels, of 28 x 28 in 10 classes. The same
// numbers give the same bits; the samples of a smaller n are the first of a
// larger one's.
Safetensors RandomBatch(int64_t n);

// The same batch with its samples in another order: sample i is order[i] of
// `batch`, which RandomBatch made.
Safetensors Reordered(const Safetensors& batch,
                      const std::vector<int64_t>& order);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GRADIENTS_FILES_H_
