// The layers of a small network in float64 with a running error bound, one
// image at a time, in plain loops. See bounded.h for what a bound is.
//
// Activations are [height, width, channel], so that a row of a convolution's
// window is contiguous. Images are square.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_LAYERS_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_LAYERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"

namespace lockstep {

// A convolution without padding, of stride 1.
struct ConvShape {
  int64_t in_channels, in_side, kernel, out_channels;
  int64_t out_side() const { return in_side - kernel + 1; }
  int64_t in_size() const { return in_side * in_side * in_channels; }
  int64_t out_size() const { return out_side() * out_side() * out_channels; }
  int64_t window_row() const { return kernel * in_channels; }
  int64_t window() const { return kernel * window_row(); }
};
// Weights in the two orders that the loops want them in.
struct ConvWeights {
  // w: [oc, ic, k, k]. b: [oc].
  ConvWeights(std::span<const float> w, std::span<const float> b,
              const ConvShape& shape);

  Factor by_output;  // [oc, window].
  Factor by_tap;     // [window, oc].
  Factor bias;
};

struct LinearWeights {
  // w: [inputs, outputs]. b: [outputs].
  LinearWeights(std::span<const float> w, std::span<const float> b,
                int64_t inputs);

  Factor by_input;   // [inputs, outputs].
  Factor by_output;  // [outputs, inputs].
  Factor bias;
};

// The sums of a layer's weight and bias gradients over all samples.
struct LayerGradient {
  LayerGradient(int64_t weights, int64_t biases)
      : weight(weights), bias(biases), terms(biases) {}
  Sums weight;
  Sums bias;
  std::vector<int64_t> terms;  // Deltas that can be other than zero, by output.
};

Bounded ConvForward(const Factor& in, const ConvWeights& w, const ConvShape& s);
void ConvWeightGradient(const Factor& in, const Factor& delta,
                        const ConvShape& s, LayerGradient& gradient);
Bounded ConvInputGradient(const Factor& delta, const ConvWeights& w,
                          const ConvShape& s);

Bounded LinearForward(const Factor& in, const LinearWeights& w);
void LinearWeightGradient(const Factor& in, const Factor& delta,
                          LayerGradient& gradient);
Bounded LinearInputGradient(const Factor& delta, const LinearWeights& w);

// max(z, 0) as float32 may see it: between 0 and z + bound.
Bounded Relu(const Bounded& z);

// Where z may be of either sign, so may the derivative be 0 or 1.
void ReluBackward(const Bounded& z, Bounded& delta);

// Means of 2 x 2 blocks; an odd last row and column are left out.
Bounded AveragePool(const Bounded& in, int64_t side, int64_t channels);
Bounded AveragePoolBackward(const Bounded& delta, int64_t side,
                            int64_t channels);

// Appends the layer's weight and bias gradient to `out`, weights as
// [oc, ic, k, k] or [inputs, outputs]. The sum over ranks adds `world_size`
// terms at most.
void AppendConvGradient(const LayerGradient& layer, const ConvShape& s,
                        int world_size, Bounded& out);
void AppendLinearGradient(const LayerGradient& layer, int world_size,
                          Bounded& out);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_LAYERS_H_
