// LeNet for the checks of data-parallel training: data and weights at which the
// error bound of a float32 gradient is tight, and the bound itself.
#ifndef LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_
#define LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/data/dataset.h"
#include "models/reference/network_reference.h"

namespace lockstep {

// The parameters: W1 [20,1,3,3], b1 [20], W2 [50,20,5,5], b2 [50], W3
// [800,128], b3 [128], W4 [128,10], b4 [10], in the order of
// models/networks/lenet.cc.
inline constexpr int64_t kLeNetParameters =
    180 + 20 + 25000 + 50 + 102400 + 128 + 1280 + 10;
inline constexpr int64_t kLeNetPixels = 28 * 28;
inline constexpr int64_t kLeNetClasses = 10;

// Returns BoundedReference (network_reference.h) of LeNet. parameters:
// [kLeNetParameters]. images: [n, 28, 28, 1]. Cost: about 7 ms an image on one
// core.
BoundedStep LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size);

// Returns `size` images [1, 28, 28], the same in every call. Each image is a
// bright blob with its own position, width and texture on a black ground. The
// label combines the blob's quarter of the plane and its size. All images
// differ.
MemoryDataset BlobDataset(int64_t size);

// Returns flat weights for LeNet at which sums hardly cancel.
//
// The rigorous bound on a sum grows with sum |a||b|. For weights of both signs,
// sum |a||b| exceeds |sum a b| by about the square root of the number of terms
// in every layer. The bound then exceeds the gradient itself, and a check with
// it would accept any result.
//
// These weights are not negative, and few of a unit's weights matter: a weight
// is a power of a uniform number, of mean 1.3 / fan-in (3 / fan-in in the last
// layer). Units therefore differ, and gradients do not cancel in backward
// either. The hidden biases are negative, so ReLU zeroes dark regions. The
// bounds are then below a hundredth of the gradients in norm (asserted where
// they are used).
std::vector<float> WellConditionedLeNet(uint32_t seed);

// Returns weights of both signs at He's scale, sqrt(2 / fan-in), and biases of
// a tenth of a standard normal number.
std::vector<float> HeLeNet(uint32_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_LENET_REFERENCE_H_
