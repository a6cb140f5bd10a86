// The layers of a convolutional network in plain loops, for the reference.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_PLAIN_LAYERS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_PLAIN_LAYERS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// Activations of T, channels last.
template <typename T>
struct Plane {
  int64_t n = 0, h = 0, w = 0, c = 0;
  std::vector<T> v;  // [n, h, w, c].

  Plane() = default;
  Plane(int64_t n, int64_t h, int64_t w, int64_t c)
      : n(n), h(h), w(w), c(c), v(n * h * w * c) {}
  int64_t pixels() const { return n * h * w; }
};

// A square convolution with zero padding of kernel / 2 on every side, as
// torch.nn.Conv2d has it: weight [out, in, kernel, kernel], bias [out].
struct PlainConvolution {
  int64_t in = 1, out = 1, kernel = 3, stride = 1;

  template <typename T>
  Plane<T> Forward(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias) const;
  // Overwrites dweight and dbias, and returns dx; without elements unless
  // `input_gradient`.
  template <typename T>
  Plane<T> Backward(const Plane<T>& x, std::span<const T> weight,
                    const Plane<T>& dy, bool input_gradient,
                    std::span<T> dweight, std::span<T> dbias) const;
};

// What one batch norm keeps of a forward pass.
template <typename T>
struct NormState {
  Plane<T> normalised;
  std::vector<T> inverse_deviation;  // [c].
};

// torch.nn.BatchNorm2d with its defaults, in training: normalises with the
// batch's mean and biased variance; running_mean and running_var move a tenth
// of the way to the batch's mean and unbiased variance.
template <typename T>
Plane<T> NormTrain(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias, std::span<T> running_mean,
                   std::span<T> running_var, NormState<T>& state);
// In evaluation: with the running statistics.
template <typename T>
Plane<T> NormEvaluate(const Plane<T>& x, std::span<const T> weight,
                      std::span<const T> bias, std::span<const T> running_mean,
                      std::span<const T> running_var);
// Of NormTrain. Overwrites dweight and dbias and returns dx.
template <typename T>
Plane<T> NormBackward(const NormState<T>& state, std::span<const T> weight,
                      const Plane<T>& dy, std::span<T> dweight,
                      std::span<T> dbias);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_PLAIN_LAYERS_H_
