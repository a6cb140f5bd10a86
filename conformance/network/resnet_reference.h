// What one rank computes: ResNet-18's loss, gradients and running statistics,
// in float64 and in plain loops.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_RESNET_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_RESNET_REFERENCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "conformance/checks.h"
#include "models/model.h"

namespace lockstep::conformance {

// Widths that the reference knows: channels of the first stage. The narrow one
// has all layers of the other at a sixteenth of the cost.
inline constexpr int64_t kResNet = 64;
inline constexpr int64_t kNarrowResNet = 16;

// The state_dict of the d2l chapter's module, written down here once more:
// names, shapes and places of the parameters, and of the running statistics
// (num_batches_tracked left out).
const std::vector<ParameterSpec>& ResNetParameterSpecs(int64_t width = kResNet);
const std::vector<ParameterSpec>& ResNetBufferSpecs(int64_t width = kResNet);

// Whether it is a batch norm's.
bool IsNorm(const ParameterSpec& parameter);

// Whether the parameter is a convolution's bias that goes straight into a batch
// norm, which takes every constant away: its gradient in training is zero.
bool HasZeroGradient(const ParameterSpec& parameter);

// One forward pass, from which backward passes can be asked. T is double, or
// float to see what rounding does. Sizes fit, by precondition.
template <typename T>
class ResNetReference {
 public:
  // parameters, running: flat, as the specs of one width lay them out; the
  // parameters borrowed while this object lives. samples: square images, at
  // least one; in training, at least two values per channel everywhere. Cost:
  // at 10 x 10 pixels, 0.1 GFLOP an image, twice that for Gradient.
  ResNetReference(std::span<const T> parameters, std::span<const T> running,
                  const Samples& samples, bool training);

  double loss_sum = 0;  // Over the batch, not its mean.
  int64_t correct = 0;
  // The running statistics after this batch.
  std::vector<T> running;
  // What every ReLU was given, in the network's order: [n, h, w, c].
  std::vector<std::span<const T>> relu_inputs;

  // Of scale * loss_sum, all parameters, flat. The derivative of ReLU at zero
  // is zero. Only after training.
  std::vector<T> Gradient(T scale) const;
  // Likewise, with a scale for each sample's loss.
  std::vector<T> Gradient(const std::vector<T>& scales) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_RESNET_REFERENCE_H_
