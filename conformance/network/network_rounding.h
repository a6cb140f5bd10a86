// ResNet-18 with the same sums in another order: what rounding alone can
// change.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_

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

// What one step of ResNet-18 must give, in float64, and what float32 rounding
// may do to it.

// One training step in float64 from float32 parameters and running statistics.
struct NetworkStep {
  double loss_sum = 0;
  std::vector<double> gradient;  // Of the mean loss.
  std::vector<double> running;   // After the step.
};

// One rank's, on the whole batch.
NetworkStep ReferenceStep(std::span<const float> parameters,
                          std::span<const float> running,
                          const Samples& samples);

// The gradient if the ranks' mean losses were averaged without weights, of the
// batch dealt to them as `deal` says.
std::vector<double> MeanOfMeansGradient(std::span<const float> parameters,
                                        std::span<const float> running,
                                        const Samples& samples,
                                        std::span<const int64_t> deal);

// What ranks with local batch norm do with the same batch, dealt to them as
// `deal` says, and all the same running statistics before: the sum of their
// losses and gradients, and the running statistics that each of them has after.
struct LocalStep {
  double loss_sum = 0;
  std::vector<double> gradient;
  std::vector<std::vector<double>> running;  // By rank.
};
LocalStep LocalReferenceStep(std::span<const float> parameters,
                             std::span<const float> running,
                             const Samples& samples,
                             std::span<const int64_t> deal);

// The norm of each tensor's a - b; NaN if there is a NaN in it.
std::vector<double> TensorDistances(std::span<const ParameterSpec> specs,
                                    std::span<const float> a,
                                    std::span<const double> b);
std::vector<double> TensorNorms(std::span<const ParameterSpec> specs,
                                std::span<const double> a);

// How far from the reference, in norm, float32 comes: the furthest that the
// product on one rank and four shadows (resnet_shadow.h) are in this step.
struct Rounding {
  double loss_sum = 0;
  std::vector<double> gradients, running;  // By tensor.
};
absl::StatusOr<Rounding> MeasureRounding(Model& model,
                                         std::span<const float> parameters,
                                         std::span<const float> running,
                                         const Samples& samples,
                                         const NetworkStep& reference);

// By how much the ReLU inputs of this step stay clear of zero: the least, over
// the ReLUs, of the smallest |z| in float64 divided by the largest error that
// float32 makes in a z where sums are plain loops. Above one, every ReLU is on
// the same side in float32.
double Clearance(std::span<const float> parameters,
                 std::span<const float> running, const Samples& samples);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_
