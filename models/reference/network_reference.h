// The step of any network as one rank computes it: outputs, loss, gradients and
// running statistics, from the network's description and the operations'
// definitions, in plain loops; in float64, in float32 to see what rounding
// does, or in float64 with a bound on how far float32 can be.
#ifndef LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_
#define LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/bounded.h"

namespace lockstep {

// In training, whether an element of a random layer (AttentionOp::layer and so
// on) is kept, of the sample with that number (Batch::samples); rate: with what
// probability it should not be. Elements count as they lie: of dropout position
// * channels + channel, of attention (head * length + query) * length + key; an
// addition's branch is element 0.
using KeepMask = std::function<bool(int layer, double rate, int64_t sample,
                                    int64_t element)>;

// The masks that a model draws for batches of this seed and step
// (Batch::seed and Batch::step).
KeepMask MasksOf(uint64_t seed, int64_t step);

// Replaces numbers of this rank by their sums over all ranks of a run that
// share a batch. Every rank calls it equally often, with as many numbers.
template <typename T>
using SumOverRanks = std::function<void(std::span<T>)>;

// Whether F(4x4, 3x3) (winograd.h) computes that convolution of a batch x to y,
// to see how it rounds. It has kernels of 3x3 at stride 1.
using WinogradRule = std::function<bool(const ConvolutionOp& op, const Shape& x,
                                        const Shape& y)>;

// An operation's use of a value: its input number `input`.
struct Consumer {
  int operation = 0;
  int input = 0;

  friend bool operator==(const Consumer&, const Consumer&) = default;
};

// One forward pass, from which backward passes can be asked. T is double,
// float, or BoundedNumber, which knows convolutions, linear layers, their ReLUs
// and average pools. The derivatives of ReLU at zero are zero; of a window's
// equal maxima the first counts. What does not fit ends the process.
template <typename T>
class NetworkReference {
 public:
  // parameters, running: flat, as CreateParameters(network).values() and
  // CreateBuffers(network).floats() lay them out. The network, the parameters
  // and the batch's spans are borrowed while this object lives. batch: may
  // be empty in training, where it is a rank's share; a batch norm needs at
  // least two values per channel, or none. keep: null if all elements are kept.
  // world_size: as BoundedReference has it. sum_over_ranks: null if every rank
  // has batch statistics of its own; otherwise batch norm takes those of all
  // ranks (SyncBatchNorm). Gradients are never summed over ranks. winograd:
  // float32 or float64 computes convolutions of 3x3 at stride 1 by F(4x4, 3x3)
  // (winograd.h), to see how that rounds. Cost: some 2 GFLOP/s in float64,
  // twice as many FLOPs for Gradient.
  NetworkReference(const Network& network, std::span<const T> parameters,
                   std::span<const T> running, const Batch& batch,
                   bool training, KeepMask keep = nullptr, int world_size = 1,
                   SumOverRanks<T> sum_over_ranks = nullptr,
                   WinogradRule winograd = nullptr);

  std::vector<T> outputs;  // [n, classes].
  std::vector<T> losses;   // By sample.
  T loss_sum = {};
  int64_t correct = 0;
  // The running statistics after this batch.
  std::vector<T> running;
  // By operation with a ReLU or with maxima, what decides its derivative: the
  // ReLU's inputs, and by how much each maximum above zero exceeds the next.
  std::vector<std::vector<T>> switches;

  // Of scale * loss_sum, all parameters, flat. Only after training.
  std::vector<T> Gradient(double scale) const;
  // Likewise, with a scale for each sample's loss. left_out: a consumer whose
  // part of the gradient of its input is forgotten, which is a bug to be found;
  // the input has another consumer. Null: none.
  std::vector<T> Gradient(std::span<const double> scales,
                          const Consumer* left_out = nullptr) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Whether the parameter is a batch norm's.
bool IsNorm(const Network& network, int parameter);
// Whether it is a convolution's bias that goes straight into a batch norm,
// which takes every constant away: its gradient in training is zero.
bool HasZeroGradient(const Network& network, int parameter);

// Loss and gradients of the mean loss of a whole batch.
struct BoundedStep {
  double loss_sum = 0;        // Over the batch, not its mean.
  double loss_sum_bound = 0;  // For float32 losses.
  Bounded gradient;           // Of loss_sum / samples; all parameters, flat.
};

// Them, and how far a float32 implementation may be from each if its samples
// are spread in any way over up to `world_size` ranks that sum their gradients
// in any order. Of networks that BoundedNumber knows.
//
// parameters and batch are float32 already, so no error is charged for them.
// The bound is rigorous under the assumptions named here and never tuned. It
// follows every tensor from the images to the gradients:
// - Convolutions, linear layers, average pools and their gradients are sums of
//   products (bounded.h). The sum over ranks regroups the same terms: it adds
//   `world_size` at most.
// - ReLU does not enlarge an error. Where float32 may see the other sign of z
//   (|z| <= bound) its derivative may be the other one too: the bound on the
//   gradient is then |delta| + bound(delta).
// - Softmax: log p moves by at most bound(z_k) + max_j bound(z_j), since
//   log-sum-exp is 1-Lipschitz in the maximum norm; exp and log are taken to be
//   within 4 ulp (8 u); p as a quotient or as exp of the log-probability, with
//   the maximum subtracted first; the scale 1/n rounded and applied before or
//   after the subtraction of the label.
BoundedStep BoundedReference(const Network& network,
                             std::span<const float> parameters,
                             const Batch& batch, int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_
