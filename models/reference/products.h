// Sums of products: convolutions and linear layers in plain loops, of float32,
// float64 or bounded numbers. A convolution is a sum over the taps of its
// kernel, each a product of matrices. A linear layer is a convolution whose
// kernel is as large as its input.
#ifndef LOCKSTEP_MODELS_REFERENCE_PRODUCTS_H_
#define LOCKSTEP_MODELS_REFERENCE_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::reference {

template <typename T>
inline constexpr bool kIsBounded = std::is_same_v<T, BoundedNumber>;

// The type in which products of T are summed.
template <typename T>
using SumOf = std::conditional_t<kIsBounded<T>, BoundedSum, T>;

template <typename T>
T Finish(const SumOf<T>& sum, double more = 0) {
  if constexpr (kIsBounded<T>) {
    return sum.Finish(more);
  } else {
    return sum;
  }
}

template <typename T>
std::vector<SumOf<T>> Factors(std::span<const T> x) {
  std::vector<SumOf<T>> factors;
  factors.reserve(x.size());
  for (const T& value : x) factors.push_back(SumOf<T>(value));
  return factors;
}

inline bool IsZero(const BoundedSum& x) { return x.upper == 0; }
template <typename T>
bool IsZero(const T& x) {
  return x == 0;
}

// Activations, channels last.
template <typename T>
struct Plane {
  Shape shape;
  std::vector<T> v;

  Plane() = default;
  explicit Plane(const Shape& shape) : shape(shape), v(shape.size()) {}
  int64_t pixels() const { return shape.n * shape.h * shape.w; }

  // Returns the sum of f(element, channel) over the pixels, by channel.
  template <typename F>
  std::vector<T> SumOverPixels(F f) const {
    std::vector<T> sums(shape.c);
    for (int64_t at = 0; at < shape.size(); ++at) {
      sums[at % shape.c] += f(at, at % shape.c);
    }
    return sums;
  }
};

inline Shape WithSamples(Shape shape, int64_t n) {
  shape.n = n;
  return shape;
}

// The window of a kernel or a pool. Pixels are numbered over all samples.
struct Window {
  int64_t kernel_h = 1, kernel_w = 1, stride = 1, padding = 0;

  int64_t taps() const { return kernel_h * kernel_w; }
  // Returns the pixel of `x` that tap `tap` reads for pixel `pixel` of the
  // output `y`, or -1 for padding.
  int64_t Input(int64_t tap, int64_t pixel, const Shape& x,
                const Shape& y) const {
    const int64_t i = pixel / y.w % y.h * stride + tap / kernel_w - padding;
    const int64_t j = pixel % y.w * stride + tap % kernel_w - padding;
    if (i < 0 || i >= x.h || j < 0 || j >= x.w) return -1;
    return (pixel / (y.h * y.w) * x.h + i) * x.w + j;
  }
};

// Adds row from[r] of x times b to row to[r] of y, for every r; b is [rows,
// columns]. Processes four rows of b at a time, so that y is not the
// bottleneck.
template <typename S>
void AddProducts(std::span<const int64_t> from, std::span<const int64_t> to,
                 const S* x, const S* b, int64_t rows, int64_t columns, S* y) {
  for (int64_t i = 0; i < rows; i += 4) {
    const int64_t count = std::min<int64_t>(4, rows - i);
    const S* b0 = b + i * columns;
    const S* b1 = count > 1 ? b0 + columns : b0;
    const S* b2 = count > 2 ? b1 + columns : b0;
    const S* b3 = count > 3 ? b2 + columns : b0;
    for (size_t r = 0; r < from.size(); ++r) {
      const S* a = x + from[r] * rows + i;
      const S a0 = a[0];
      const S a1 = count > 1 ? a[1] : S();
      const S a2 = count > 2 ? a[2] : S();
      const S a3 = count > 3 ? a[3] : S();
      if (IsZero(a0) && IsZero(a1) && IsZero(a2) && IsZero(a3)) continue;
      S* out = y + to[r] * columns;
      for (int64_t j = 0; j < columns; ++j) {
        S sum = a0 * b0[j];
        sum += a1 * b1[j];
        sum += a2 * b2[j];
        sum += a3 * b3[j];
        out[j] += sum;
      }
    }
  }
}

// Computes the sums of products of a convolution or linear layer.
template <typename T>
class Products {
 public:
  using S = SumOf<T>;

  Products(const Window& window, int64_t in, int64_t out, bool inputs_first)
      : window_(window), in_(in), out_(out), inputs_first_(inputs_first) {}

  int64_t weights() const { return window_.taps() * in_ * out_; }

  Plane<T> Forward(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias, const Shape& shape) const {
    const std::vector<S> factors = Factors<T>(x.v);
    const std::vector<S> matrices = TapMatrices(weight, /*transposed=*/false);
    Plane<S> sums(shape);
    if (!bias.empty()) {
      const std::vector<S> first = Factors(bias);
      for (int64_t pixel = 0; pixel < sums.pixels(); ++pixel) {
        std::ranges::copy(first, sums.v.begin() + pixel * out_);
      }
    }
    ForTaps(x.shape, shape,
            [&](int64_t tap, std::span<const int64_t> inputs,
                std::span<const int64_t> outputs) {
              AddProducts(inputs, outputs, factors.data(),
                          &matrices[tap * in_ * out_], in_, out_,
                          sums.v.data());
            });
    Plane<T> y(shape);
    for (size_t i = 0; i < y.v.size(); ++i) y.v[i] = Finish<T>(sums.v[i]);
    return y;
  }

  Plane<T> InputGradient(const Shape& x, std::span<const T> weight,
                         const Plane<T>& dy) const {
    const std::vector<S> factors = Factors<T>(dy.v);
    const std::vector<S> matrices = TapMatrices(weight, /*transposed=*/true);
    Plane<S> sums(x);
    ForTaps(x, dy.shape,
            [&](int64_t tap, std::span<const int64_t> inputs,
                std::span<const int64_t> outputs) {
              AddProducts(outputs, inputs, factors.data(),
                          &matrices[tap * in_ * out_], out_, in_,
                          sums.v.data());
            });
    Plane<T> dx(x);
    for (size_t i = 0; i < dx.v.size(); ++i) dx.v[i] = Finish<T>(sums.v[i]);
    return dx;
  }

  // more: see BoundedSum::Finish.
  void ParameterGradients(const Plane<T>& x, const Plane<T>& dy, double more,
                          std::span<T> dweight, std::span<T> dbias) const {
    const std::vector<S> inputs_of = Factors<T>(x.v);
    const std::vector<S> deltas = Factors<T>(dy.v);
    std::vector<S> sums(weights()), columns, rows;
    std::vector<int64_t> all(in_);
    std::iota(all.begin(), all.end(), 0);
    ForTaps(x.shape, dy.shape,
            [&](int64_t tap, std::span<const int64_t> inputs,
                std::span<const int64_t> outputs) {
              // x is transposed to [in, pairs], so that the rows of the product
              // are inputs.
              const auto pairs = static_cast<int64_t>(inputs.size());
              columns.resize(in_ * pairs);
              rows.resize(pairs * out_);
              for (int64_t r = 0; r < pairs; ++r) {
                for (int64_t i = 0; i < in_; ++i) {
                  columns[i * pairs + r] = inputs_of[inputs[r] * in_ + i];
                }
                std::copy_n(&deltas[outputs[r] * out_], out_, &rows[r * out_]);
              }
              AddProducts<S>(all, all, columns.data(), rows.data(), pairs, out_,
                             &sums[tap * in_ * out_]);
            });
    for (int64_t at = 0; at < weights(); ++at) {
      const int64_t tap = at / (in_ * out_);
      dweight[WeightIndex(tap, at / out_ % in_, at % out_)] =
          Finish<T>(sums[at], more);
    }
    if (dbias.empty()) return;
    std::vector<S> bias_sums(out_);
    for (size_t i = 0; i < deltas.size(); ++i) bias_sums[i % out_] += deltas[i];
    for (int64_t o = 0; o < out_; ++o) dbias[o] = Finish<T>(bias_sums[o], more);
  }

 private:
  // The number of output pixels that all taps process together, so that these
  // pixels stay in the cache.
  static constexpr int64_t kChunk = 64;

  // Calls f(tap, input pixels, output pixels) with all pairs that a tap
  // connects.
  template <typename F>
  void ForTaps(const Shape& x, const Shape& y, F f) const {
    std::vector<int64_t> inputs, outputs;
    const int64_t pixels = y.n * y.h * y.w;
    for (int64_t begin = 0; begin < pixels; begin += kChunk) {
      for (int64_t tap = 0; tap < window_.taps(); ++tap) {
        inputs.clear();
        outputs.clear();
        for (int64_t pixel = begin; pixel < std::min(begin + kChunk, pixels);
             ++pixel) {
          const int64_t input = window_.Input(tap, pixel, x, y);
          if (input < 0) continue;
          inputs.push_back(input);
          outputs.push_back(pixel);
        }
        if (!inputs.empty()) f(tap, inputs, outputs);
      }
    }
  }

  // Returns a weight's position in its tensor: [out, in, taps], or [in, taps,
  // out].
  int64_t WeightIndex(int64_t tap, int64_t i, int64_t o) const {
    const int64_t at = i * window_.taps() + tap;
    return inputs_first_ ? at * out_ + o : o * in_ * window_.taps() + at;
  }

  // Returns each tap's weights as a matrix: [in, out], or transposed [out, in].
  std::vector<S> TapMatrices(std::span<const T> weight, bool transposed) const {
    std::vector<S> matrices(weights());
    for (int64_t at = 0; at < weights(); ++at) {
      const int64_t tap = at / (in_ * out_);
      const int64_t i = at / out_ % in_, o = at % out_;
      matrices[transposed ? (tap * out_ + o) * in_ + i : at] =
          S(weight[WeightIndex(tap, i, o)]);
    }
    return matrices;
  }

  const Window window_;
  const int64_t in_, out_;
  const bool inputs_first_;
};

}  // namespace lockstep::reference

#endif  // LOCKSTEP_MODELS_REFERENCE_PRODUCTS_H_
