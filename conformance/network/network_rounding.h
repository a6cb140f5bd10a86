// What one step of ResNet-18 must give, in float64, and what float32 rounding
// may do to it.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_ROUNDING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {

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
// product on one rank is in this step, as it is and in four reference runs
// (reordering.h): with its channels in another order, images and kernels
// transposed, and the samples in another order, so that every sum, batch norm's
// included, adds its terms in another order.
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
