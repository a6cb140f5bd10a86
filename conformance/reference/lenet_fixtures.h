// Data and weights on which a float32 gradient has a tight error bound.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_LENET_FIXTURES_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_LENET_FIXTURES_H_

#include <cstdint>
#include <vector>

#include "models/data/dataset.h"

namespace lockstep {

// `size` images [1, 28, 28], each a bright blob of its own place, width and
// texture on a black ground, labelled by what quarter of the plane and size it
// has. No two are equal. The same for every call.
Dataset BlobDataset(int64_t size);

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

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_LENET_FIXTURES_H_
