// ResNet-18's parameters, buffers and batches for the network's checks.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_FIXTURES_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_FIXTURES_H_

#include <cstdint>
#include <vector>

#include "conformance/trace.h"

namespace lockstep {

// 10 -> 5 -> 3 -> 2 pixels: odd sizes under strides, and every tap of every
// kernel meets a pixel.
inline constexpr int64_t kNetworkSide = 10;

// Parameters, flat (ResNetParameterSpecs), with which few ReLU inputs come near
// zero: each batch norm's bias is 1.5 to 2.5 times its weight, upwards in even
// channels and downwards in odd ones, so that a twentieth of the inputs is on
// the other side of zero than its channel. Where an input is zero but for
// rounding its derivative is a matter of the order of additions, and one such
// input changes a gradient by a thousand times what rounding does.
std::vector<float> NetworkParameters(uint32_t seed);

// Running statistics, flat (ResNetBufferSpecs), that no batch would give:
// means around zero, variances in [0.5, 1.5).
std::vector<float> NetworkRunning(uint32_t seed);

// n images [1, kNetworkSide, kNetworkSide] of random bytes divided by 255, as a
// Dataset gives them, with random labels.
Samples NetworkBatch(uint32_t seed, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_FIXTURES_H_
