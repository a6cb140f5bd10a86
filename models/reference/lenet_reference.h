// LeNet for the checks of data-parallel training: data and weights on which a
// float32 gradient has a tight error bound, and that bound.
#ifndef LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_
#define LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/data/dataset.h"
#include "models/reference/network_reference.h"

namespace lockstep {

// W1 [20,1,3,3], b1 [20], W2 [50,20,5,5], b2 [50], W3 [800,128], b3 [128],
// W4 [128,10], b4 [10], in this order, as models/networks/lenet.cc has them.
inline constexpr int64_t kLeNetParameters =
    180 + 20 + 25000 + 50 + 102400 + 128 + 1280 + 10;
inline constexpr int64_t kLeNetPixels = 28 * 28;
inline constexpr int64_t kLeNetClasses = 10;

// What BoundedReference (network_reference.h) says of LeNet. parameters:
// [kLeNetParameters]. images: [n, 28, 28, 1]. Cost: about 7 ms an image on one
// core.
BoundedStep LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size);

// `size` images [1, 28, 28], each a bright blob of its own place, width and
// texture on a black ground, labelled by what quarter of the plane and size it
// has. No two are equal. The same for every call.
MemoryDataset BlobDataset(int64_t size);

// Weights for LeNet, flat, at which sums hardly cancel. The rigorous bound on
// a sum grows with sum |a||b|; for weights of both signs, sum |a||b| exceeds
// |sum a b| by about the square root of the number of terms, layer after layer,
// and the bound outgrows the gradient itself: a check with it would accept
// anything. Here weights are not negative, and few of a unit's weights matter
// (a power of a uniform number, of mean 1.3 / fan-in; 3 / fan-in in the last
// layer), so that units differ and what flows back through them does not cancel
// either. The hidden biases are negative, so that ReLU cuts off what is dark.
// The bounds are then below a hundredth of the gradients in norm (asserted
// where they are used).
std::vector<float> WellConditionedLeNet(uint32_t seed);

// Weights of both signs at He's scale, sqrt(2 / fan-in), biases a tenth of a
// standard normal.
std::vector<float> HeLeNet(uint32_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_
