// ResNet-18 with the same sums in another order: what rounding alone can
// change.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_RESNET_SHADOW_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_RESNET_SHADOW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {

// One training step's numbers, in the network's own order.
struct NetworkNumbers {
  double loss_sum = 0;
  std::vector<float> gradient;  // Of the mean loss.
  std::vector<float> running;   // After the step.
};

// What `model`, a ResNet-18, computes for the batch with these parameters and
// running statistics: seed 0, as it is; another seed, with its channels in an
// order of the seed's own, images and kernels transposed, and the samples in
// another order. Mathematically the same; in float32 every sum, batch norm's
// included, adds its terms in another order. Errors: the model's.
absl::StatusOr<NetworkNumbers> ComputeInOrder(uint32_t seed, Model& model,
                                              std::span<const float> parameters,
                                              std::span<const float> running,
                                              const Samples& samples);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_RESNET_SHADOW_H_
