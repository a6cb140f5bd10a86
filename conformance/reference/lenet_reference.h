// What one rank computes: LeNet's loss and gradients in float64, with the
// tolerance for any float32 implementation on any number of ranks.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_LENET_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_LENET_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"
#include "models/data/dataset.h"

namespace lockstep::conformance {

// W1 [20,1,3,3], b1 [20], W2 [50,20,5,5], b2 [50], W3 [800,128], b3 [128],
// W4 [128,10], b4 [10], in this order, as models/networks/networks.h lays them
// out.
inline constexpr int64_t kLeNetParameters =
    180 + 20 + 25000 + 50 + 102400 + 128 + 1280 + 10;
inline constexpr int64_t kLeNetPixels = 28 * 28;
inline constexpr int64_t kLeNetClasses = 10;

struct LeNetResult {
  double loss_sum = 0;        // Over the batch, not its mean.
  double loss_sum_bound = 0;  // For float32 losses.
  Bounded gradient;           // Of loss_sum / samples; all parameters, flat.
};

// Loss and gradients of the mean loss of the whole batch, and how far a float32
// implementation may be from each of them if its samples are spread in any way
// over up to `world_size` ranks that sum their gradients in any order.
//
// parameters: host float32 [kLeNetParameters]. images: host float32
// [n, 1, 28, 28]. labels: host [n], each in [0, 10). n at least 1. The inputs
// are float32 already, so no error is charged for them.
//
// The bound is rigorous under the assumptions named here and never tuned. It
// follows every tensor from the images to the gradients:
// - Convolutions, linear layers and their gradients are sums of products
//   (bounded.h): 9, 500, 800 and 128 terms and a bias forward; over output
//   channels and positions backward; over samples and positions for weights.
//   The sum over ranks regroups the same terms: it adds `world_size` at most.
// - Average pooling is a sum of four terms; the division by four is exact.
// - ReLU does not enlarge an error. Where float32 may see the other sign of z
//   (|z| <= bound) its derivative may be the other one too: the bound on the
//   gradient is then |delta| + bound(delta). The derivative at 0 is 0.
// - Softmax: log p moves by at most bound(z_k) + max_j bound(z_j), since
//   log-sum-exp is 1-Lipschitz in the maximum norm; exp and log are taken to be
//   within 4 ulp (8 u); p as a quotient or as exp of the log-probability, with
//   the maximum subtracted first; the scale 1/n rounded and applied before or
//   after the subtraction of the label.
// Cost: about 6 ms an image on one core.
LeNetResult LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size);

// Data and weights on which a float32 gradient has a tight error bound.

// `size` images [1, 28, 28], each a bright blob of its own place, width and
// texture on a black ground, labelled by what quarter of the plane and size it
// has. No two are equal. The same for every call.
Dataset BlobDataset(int64_t size);

// Weights for LeNet, flat, at which sums hardly cancel. The rigorous bound on
// a sum grows with sum |a||b|; for weights of both signs, sum |a||b| exceeds
// |sum a b| by about the square root of the number of terms, layer after layer,
// and the bound outgrows the gradient itself: a check with it would accept
// anything. Here weights are not negative, and few of a unit's weights matter
// (a power of a uniform number, of mean 1.3 / fan-in; 3 / fan-in in the last
// layer), so that units differ and what flows back through them does not cancel
// either. The hidden biases are negative, so that ReLU cuts off what is dark.
// The bounds are then below a hundredth of the gradients in norm (asserted
// where they are used).
std::vector<float> WellConditionedLeNet(uint32_t seed);

// Weights of both signs at He's scale, sqrt(2 / fan-in), biases a tenth of a
// standard normal.
std::vector<float> HeLeNet(uint32_t seed);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_LENET_REFERENCE_H_
