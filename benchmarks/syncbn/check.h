// What a batch norm layer should have computed, in float64.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CHECK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CHECK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "syncbn/activations.h"

namespace lockstep::benchmarks {

// The inputs of a layer on one rank, in host memory: x and dy of one activation
// type other than float64; weight and bias [c].
struct LayerInputs {
  ActivationShape shape;
  ConstBuffer x;
  ConstBuffer dy;
  std::span<const float> weight;
  std::span<const float> bias;
};

// What it computed from them, without ReLU and residual.
struct LayerOutputs {
  ConstBuffer y;
  ConstBuffer dx;
  std::span<const float> dweight;
  std::span<const float> dbias;
};

// Statistics of the whole batch by channel, and what the layer's sums over it
// are. Every element is compared with what follows from those.
//
// With u = 2^-24, n values per channel, and rms the root of a mean of squares:
// the error of a sum of n terms in float32 is a random walk of n roundings, of
// standard deviation u sqrt(n) times the terms' magnitude at most; k = 8
// sqrt(n) + 16 allows eight of those, and the operations after it. So
//   mean:               k u rms(x), and the inverse deviation, relative: k u
//   y:                  k u (|weight| (rms(x) inv + |normalised|) + |bias|)
//   dx, over weight inv: k u (|dy| + rms(dy) (1 + |normalised|) (2 + rms(x)
//                       inv))
//   dbias: k u n rms(dy);  dweight: 4 k u n rms(dy) (1 + rms(x) inv)
// and the unit round-off of the type for what is rounded to it. NaN is wrong.
class LayerReference {
 public:
  // Of the batches of all ranks of `group`, which sum in float64, or without a
  // group of this rank's own. Reads the inputs twice. Error: the group's.
  static absl::StatusOr<LayerReference> Create(const LayerInputs& inputs,
                                               double epsilon,
                                               Communicator* group);

  // The elements of all outputs that are not right. inputs: those of Create.
  int64_t CountWrong(const LayerInputs& inputs,
                     const LayerOutputs& outputs) const;

 private:
  struct Channel {
    double mean = 0, inverse = 0, rms_x = 0;
    // Means over the whole batch: of dy, of dy * normalised, of dy squared.
    double mean_dy = 0, mean_dy_normalised = 0, rms_dy = 0;
    // Sums over this rank's part: of dy, of dy * normalised.
    double own_dy = 0, own_dy_normalised = 0;
  };

  template <typename T>
  int64_t CountWrongElements(const LayerInputs& inputs,
                             const LayerOutputs& outputs) const;
  int64_t CountWrongGradients(const LayerOutputs& outputs) const;

  std::vector<Channel> channels_;
  double values_ = 0;  // Per channel, in the whole batch.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CHECK_H_
