// Small networks on the CPU, sixteen samples at a time.
#ifndef LOCKSTEP_MODELS_CPU_LANE_MODEL_H_
#define LOCKSTEP_MODELS_CPU_LANE_MODEL_H_

#include <cstdint>
#include <memory>

#include "models/cpu/cpu_model.h"
#include "models/networks/network.h"

namespace lockstep {

// Returns whether CreateLaneReplica supports the network. The processor must
// have AVX-512, and the network must be a chain, like LeNet, of:
//
//   - convolutions of 3x3 and 5x5 without padding, with at most
//     kMaxLaneChannels outputs;
//   - average pools whose windows do not overlap;
//   - linear layers.
//
// oneDNN vectorises over channels, so LeNet's 20 and 50 channels waste about a
// third of each register. Here samples are innermost (lane_kernels.h). A thread
// takes sixteen samples from the images to the gradients within its cache, and
// values that a pool drops are not computed.
inline constexpr int64_t kMaxLaneChannels = 64;
bool FitsLanes(const Network& network);

// Creates a replica of such a network, in float32. Its threads share the
// samples. With the same number of threads, the same inputs give the same bits.
std::unique_ptr<CpuReplica> CreateLaneReplica(Network network, uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LANE_MODEL_H_
