// Small networks on the CPU, sixteen samples at a time.
#ifndef LOCKSTEP_MODELS_CPU_LANE_MODEL_H_
#define LOCKSTEP_MODELS_CPU_LANE_MODEL_H_

#include <cstdint>
#include <memory>

#include "models/cpu/cpu_model.h"
#include "models/networks/network.h"

namespace lockstep {

// Whether CreateLaneReplica computes the network: on a processor with AVX-512,
// a chain of convolutions of 3x3 and 5x5 without padding and with at most
// kMostLaneChannels outputs, average pools whose windows lie side by side, and
// linear layers, as LeNet is. What oneDNN makes of channels whose number is no
// multiple of 16 wastes a third of each register; here samples are innermost
// (lane_kernels.h), a thread takes sixteen of them from the images to the
// gradients within its cache, and what a pool drops is not computed.
inline constexpr int64_t kMostLaneChannels = 64;
bool FitsLanes(const Network& network);

// A replica of such a network, in float32. Its threads share the samples; with
// the same number of threads the same inputs give the same bits.
std::unique_ptr<CpuReplica> CreateLaneReplica(Network network, uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LANE_MODEL_H_
