// The training step of any network as one rank computes it: outputs, loss,
// gradients and running statistics. The reference uses the network's
// description and the definitions of the operations, in plain loops. It
// computes in float64; in float32, which shows the effect of rounding; or in
// float64 with a bound on the error of float32.
#ifndef LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_
#define LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/data_types.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/bounded.h"

namespace lockstep {

// Decides, in training, whether an element of a random layer
// (AttentionOp::layer and so on) is kept. `sample` is the sample's number
// (Batch::samples), `rate` the probability of dropping the element. The
// element's number depends on the layer. Dropout: position * channels +
// channel. Attention: (head * length + query) * length + key. The branch of an
// addition is element 0.
using KeepMask = std::function<bool(int layer, double rate, int64_t sample,
                                    int64_t element)>;

// Returns the masks that a model draws for batches of this seed and step
// (Batch::seed and Batch::step).
KeepMask MasksOf(uint64_t seed, int64_t step);

// Replaces this rank's numbers by their sums over all ranks that share a batch.
// Every rank makes the same number of calls, with equally many numbers.
template <typename T>
using SumOverRanks = std::function<void(std::span<T>)>;

// Decides whether F(4x4, 3x3) (winograd.h) computes the convolution from x to
// y, which shows its rounding. The convolution has 3x3 kernels at stride 1.
using WinogradRule = std::function<bool(const ConvolutionOp& op, const Shape& x,
                                        const Shape& y)>;

// An operation that uses a value, as its input number `input`.
struct Consumer {
  int operation = 0;
  int input = 0;

  friend bool operator==(const Consumer&, const Consumer&) = default;
};

// The rounding of a device that stores activations in 16 bits and computes in
// float32. These numbers are rounded: the images; the weights and biases of
// convolutions and linear layers; each value between operations and each part
// of its gradient; attention's softmax, before and after dropout, and the
// gradient of the softmax's input; and gradients of convolutions' weights. All
// other numbers keep T, among them sums, statistics and the other parameters.
struct StoredActivations {
  DataType type =
      DataType::kFloat64;  // kFloat16 or kBFloat16; else no rounding.
  // If not 0, a number goes to one of its two neighbours at random, so that the
  // mean is the number. Such passes are samples of the effect of rounding.
  // 0: to the nearest.
  uint32_t seed = 0;
  // A power of two by which gradients are multiplied while they are rounded.
  double loss_scale = 1;
};

// One forward pass, with any number of backward passes. T is double, float, or
// BoundedNumber. BoundedNumber supports convolutions, linear layers, their
// ReLUs and average pools; any other operation aborts the process. The
// derivative of ReLU at zero is zero. Of equal maxima in a window, the first
// gets the gradient. Sizes must match (asserted).
template <typename T>
class NetworkReference {
 public:
  // parameters, running: flat, in the layout of
  // CreateParameters(network).values() and CreateBuffers(network).floats(). The
  // network, the parameters and the batch's spans are borrowed while this
  // object lives. batch: may be empty in training, as a rank's share. A batch
  // norm needs at least two values per channel, or none. keep: null if all
  // elements are kept. world_size: as in BoundedReference. sum_over_ranks: null
  // if every rank has its own batch statistics. Otherwise batch norm uses the
  // statistics of all ranks (SyncBatchNorm). Gradients are never summed over
  // ranks. winograd: null, or the rule that selects 3x3 convolutions at stride
  // 1 for F(4x4, 3x3) (winograd.h); float32 or float64 only. stored: the type
  // of activations in memory; float32 or float64 only. Cost: some 2 GFLOP/s in
  // float64; Gradient takes twice as many FLOPs.
  NetworkReference(const Network& network, std::span<const T> parameters,
                   std::span<const T> running, const Batch& batch,
                   bool training, KeepMask keep = nullptr, int world_size = 1,
                   SumOverRanks<T> sum_over_ranks = nullptr,
                   WinogradRule winograd = nullptr,
                   const StoredActivations& stored = {});

  std::vector<T> outputs;  // [n, classes].
  std::vector<T> losses;   // One for each sample.
  T loss_sum = {};
  int64_t correct = 0;
  // The running statistics after this batch.
  std::vector<T> running;
  // The values that decide derivatives, for each operation with ReLU or maxima:
  // the ReLU's inputs, or the margin of each nonzero maximum over the next
  // value.
  std::vector<std::vector<T>> switches;

  // Returns the gradient of scale * loss_sum for all parameters, flat. Only
  // after a pass in training.
  std::vector<T> Gradient(double scale) const;
  // Returns the gradient with a scale for each sample's loss. left_out: a
  // consumer whose part of the gradient of its input is omitted, to simulate a
  // bug; the input must have another consumer. Null: nothing is omitted.
  std::vector<T> Gradient(std::span<const double> scales,
                          const Consumer* left_out = nullptr) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Returns whether the parameter belongs to a batch norm.
bool IsNorm(const Network& network, int parameter);
// Returns whether the parameter is the bias of a convolution that feeds a batch
// norm. Batch norm removes every constant, so the bias's gradient in training
// is zero.
bool HasZeroGradient(const Network& network, int parameter);

// The loss and the gradients of the mean loss of a whole batch.
struct BoundedStep {
  double loss_sum = 0;        // The sum over the batch, not the mean.
  double loss_sum_bound = 0;  // The bound on the error of float32 losses.
  Bounded gradient;           // Of loss_sum / samples; all parameters, flat.
};

// Returns loss and gradients, with a bound on the error of a float32
// implementation. Its samples may be spread in any way over up to `world_size`
// ranks that sum their gradients in any order. The network may have only
// operations that BoundedNumber supports.
//
// parameters and batch are float32 already, so they have no error. The bound is
// rigorous under the assumptions named here and never tuned. It follows every
// tensor from the images to the gradients:
// - Convolutions, linear layers, average pools and their gradients are sums of
//   products (bounded.h). The sum over ranks regroups the same terms: it adds
//   `world_size` at most.
// - ReLU does not enlarge an error. If float32 may see the opposite sign of z
//   (|z| <= bound), its derivative may also be the opposite one. The bound on
//   the gradient is then |delta| + bound(delta).
// - Softmax: log p moves by at most bound(z_k) + max_j bound(z_j), since
//   log-sum-exp is 1-Lipschitz in the maximum norm. exp and log are taken to be
//   within 4 ulp (8 u). p may be a quotient, or exp of the log-probability,
//   with the maximum subtracted first. The scale 1/n is rounded, and applied
//   before or after the subtraction of the label.
BoundedStep BoundedReference(const Network& network,
                             std::span<const float> parameters,
                             const Batch& batch, int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_NETWORK_REFERENCE_H_
