// The layers of a convolutional network from their definitions, in plain loops:
// what references compute with, in float64, or in float32 to see what rounding
// does. A convolution is a sum over the taps of its kernel, each a product of
// matrices.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LAYERS_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LAYERS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::conformance {

// Activations of T, channels last.
template <typename T>
struct Plane {
  int64_t n = 0, h = 0, w = 0, c = 0;
  std::vector<T> v;  // [n, h, w, c].

  Plane() = default;
  Plane(int64_t n, int64_t h, int64_t w, int64_t c)
      : n(n), h(h), w(w), c(c), v(n * h * w * c) {}
  int64_t pixels() const { return n * h * w; }

  // f(element, channel) added up over the pixels, by channel.
  template <typename F>
  std::vector<T> SumOverPixels(F f) const {
    std::vector<T> sums(c);
    for (int64_t pixel = 0; pixel < pixels(); ++pixel) {
      for (int64_t i = 0; i < c; ++i) sums[i] += f(pixel * c + i, i);
    }
    return sums;
  }
  std::vector<T> SumOverPixels() const {
    return SumOverPixels([this](int64_t at, int64_t) { return v[at]; });
  }
};

template <typename T>
Plane<T> Relu(Plane<T> z) {
  for (T& v : z.v) v = v > 0 ? v : 0;
  return z;
}

// The derivative at zero is zero.
template <typename T>
Plane<T> ReluBackward(const Plane<T>& z, Plane<T> dy) {
  for (size_t i = 0; i < dy.v.size(); ++i) {
    if (!(z.v[i] > 0)) dy.v[i] = 0;
  }
  return dy;
}

// A square convolution, as torch.nn.Conv2d has it: weight [out, in, kernel,
// kernel], bias [out].
template <typename T>
class PlainConvolution {
 public:
  PlainConvolution(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                   int64_t padding)
      : in_(in),
        out_(out),
        kernel_(kernel),
        stride_(stride),
        padding_(padding) {}

  int64_t weights() const { return out_ * in_ * kernel_ * kernel_; }
  int64_t biases() const { return out_; }

  Plane<T> Forward(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias) const {
    const auto side = [this](int64_t in) {
      return (in + 2 * padding_ - kernel_) / stride_ + 1;
    };
    Plane<T> y(x.n, side(x.h), side(x.w), out_);
    for (int64_t pixel = 0; pixel < y.pixels(); ++pixel) {
      std::copy(bias.begin(), bias.end(), y.v.begin() + pixel * out_);
    }
    for (const Tap& tap : TapsOf(x, y)) {
      AddProducts(tap.inputs, tap.outputs, x.v,
                  TapMatrix(tap, weight, /*transposed=*/false), in_, out_, y.v);
    }
    return y;
  }

  // Overwrites dweight and dbias, and returns dx; without elements unless
  // `input_gradient`.
  Plane<T> Backward(const Plane<T>& x, std::span<const T> weight,
                    const Plane<T>& dy, bool input_gradient,
                    std::span<T> dweight, std::span<T> dbias) const {
    std::ranges::copy(dy.SumOverPixels(), dbias.begin());
    std::ranges::fill(dweight, T{0});
    Plane<T> dx;
    if (input_gradient) dx = Plane<T>(x.n, x.h, x.w, x.c);
    for (const Tap& tap : TapsOf(x, dy)) {
      TapGradient(tap, x, dy, dweight);
      if (!input_gradient) continue;
      AddProducts(tap.outputs, tap.inputs, dy.v,
                  TapMatrix(tap, weight, /*transposed=*/true), out_, in_, dx.v);
    }
    return dx;
  }

 private:
  // One tap of the kernel: which input pixel meets which output pixel.
  struct Tap {
    int64_t at = 0;                        // In a kernel.
    std::vector<int64_t> inputs, outputs;  // Numbers of pixels, pairwise.
  };

  // Those that meet any pixel.
  std::vector<Tap> TapsOf(const Plane<T>& x, const Plane<T>& y) const {
    std::vector<Tap> taps;
    for (int64_t at = 0; at < kernel_ * kernel_; ++at) {
      Tap tap{at, {}, {}};
      for (int64_t pixel = 0; pixel < y.pixels(); ++pixel) {
        const int64_t sample = pixel / (y.h * y.w);
        const int64_t i = pixel / y.w % y.h * stride_ + at / kernel_ - padding_;
        const int64_t j = pixel % y.w * stride_ + at % kernel_ - padding_;
        if (i < 0 || i >= x.h || j < 0 || j >= x.w) continue;
        tap.inputs.push_back((sample * x.h + i) * x.w + j);
        tap.outputs.push_back(pixel);
      }
      if (!tap.inputs.empty()) taps.push_back(std::move(tap));
    }
    return taps;
  }

  // Row to[r] of y += row from[r] of x times b, for every r, where b is [rows,
  // columns]. Four rows of b at a time, so that y is not the bottleneck.
  static void AddProducts(std::span<const int64_t> from,
                          std::span<const int64_t> to, std::span<const T> x,
                          std::span<const T> b, int64_t rows, int64_t columns,
                          std::span<T> y) {
    for (int64_t i = 0; i < rows; i += 4) {
      const int64_t count = std::min<int64_t>(4, rows - i);
      const T* b0 = &b[i * columns];
      const T* b1 = count > 1 ? b0 + columns : b0;
      const T* b2 = count > 2 ? b1 + columns : b0;
      const T* b3 = count > 3 ? b2 + columns : b0;
      for (size_t r = 0; r < from.size(); ++r) {
        const T* a = &x[from[r] * rows + i];
        const T a0 = a[0];
        const T a1 = count > 1 ? a[1] : 0;
        const T a2 = count > 2 ? a[2] : 0;
        const T a3 = count > 3 ? a[3] : 0;
        T* out = &y[to[r] * columns];
        for (int64_t j = 0; j < columns; ++j) {
          out[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
        }
      }
    }
  }

  // A tap's weights as a matrix: [in, out], or transposed [out, in].
  std::vector<T> TapMatrix(const Tap& tap, std::span<const T> weight,
                           bool transposed) const {
    std::vector<T> b(in_ * out_);
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        b[transposed ? o * in_ + i : i * out_ + o] =
            weight[(o * in_ + i) * kernel_ * kernel_ + tap.at];
      }
    }
    return b;
  }

  // dweight of one tap: the sum over its pixel pairs of x dy^T.
  void TapGradient(const Tap& tap, const Plane<T>& x, const Plane<T>& dy,
                   std::span<T> dweight) const {
    // x transposed, [in, pairs], so that the product's rows are inputs.
    const int64_t pairs = static_cast<int64_t>(tap.inputs.size());
    std::vector<T> columns(in_ * pairs);
    std::vector<T> rows(pairs * out_);
    for (int64_t r = 0; r < pairs; ++r) {
      for (int64_t i = 0; i < in_; ++i) {
        columns[i * pairs + r] = x.v[tap.inputs[r] * in_ + i];
      }
      std::copy_n(&dy.v[tap.outputs[r] * out_], out_, &rows[r * out_]);
    }
    std::vector<int64_t> inputs(in_);
    std::iota(inputs.begin(), inputs.end(), 0);
    std::vector<T> product(in_ * out_);
    AddProducts(inputs, inputs, columns, rows, pairs, out_, product);
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        dweight[(o * in_ + i) * kernel_ * kernel_ + tap.at] =
            product[i * out_ + o];
      }
    }
  }

  int64_t in_, out_, kernel_, stride_, padding_;
};

// torch.nn.BatchNorm2d with its defaults.
template <typename T>
class PlainBatchNorm {
 public:
  // In training: normalises with the batch's mean and biased variance;
  // running_mean and running_var move a tenth of the way to the batch's mean
  // and unbiased variance.
  Plane<T> Train(const Plane<T>& x, std::span<const T> weight,
                 std::span<const T> bias, std::span<T> running_mean,
                 std::span<T> running_var) {
    const T count = static_cast<T>(x.pixels());
    std::vector<T> mean = x.SumOverPixels();
    for (T& m : mean) m /= count;
    const std::vector<T> m2 = x.SumOverPixels([&](int64_t at, int64_t c) {
      return (x.v[at] - mean[c]) * (x.v[at] - mean[c]);
    });
    normalised_ = x;
    inverse_deviation_.resize(x.c);
    for (int64_t c = 0; c < x.c; ++c) {
      inverse_deviation_[c] = 1 / std::sqrt(m2[c] / count + kEpsilon);
      running_mean[c] += kMomentum * (mean[c] - running_mean[c]);
      running_var[c] += kMomentum * (m2[c] / (count - 1) - running_var[c]);
    }
    Plane<T> y = x;
    for (int64_t at = 0; at < static_cast<int64_t>(y.v.size()); ++at) {
      const int64_t c = at % x.c;
      normalised_.v[at] = (x.v[at] - mean[c]) * inverse_deviation_[c];
      y.v[at] = normalised_.v[at] * weight[c] + bias[c];
    }
    return y;
  }

  // In evaluation: with the running statistics.
  static Plane<T> Evaluate(const Plane<T>& x, std::span<const T> weight,
                           std::span<const T> bias,
                           std::span<const T> running_mean,
                           std::span<const T> running_var) {
    Plane<T> y = x;
    for (int64_t at = 0; at < static_cast<int64_t>(y.v.size()); ++at) {
      const int64_t c = at % x.c;
      const T deviation = std::sqrt(running_var[c] + kEpsilon);
      y.v[at] = (x.v[at] - running_mean[c]) / deviation * weight[c] + bias[c];
    }
    return y;
  }

  // Of the last Train. Overwrites dweight and dbias and returns dx.
  Plane<T> Backward(std::span<const T> weight, const Plane<T>& dy,
                    std::span<T> dweight, std::span<T> dbias) const {
    const std::vector<T> sum = dy.SumOverPixels();
    const std::vector<T> dot = dy.SumOverPixels(
        [&](int64_t at, int64_t) { return dy.v[at] * normalised_.v[at]; });
    std::ranges::copy(sum, dbias.begin());
    std::ranges::copy(dot, dweight.begin());
    const T count = static_cast<T>(dy.pixels());
    Plane<T> dx = dy;
    for (int64_t at = 0; at < static_cast<int64_t>(dx.v.size()); ++at) {
      const int64_t c = at % dx.c;
      dx.v[at] =
          weight[c] * inverse_deviation_[c] *
          (dy.v[at] - sum[c] / count - normalised_.v[at] * dot[c] / count);
    }
    return dx;
  }

 private:
  static constexpr T kEpsilon = static_cast<T>(1e-5);
  static constexpr T kMomentum = static_cast<T>(0.1);

  Plane<T> normalised_;
  std::vector<T> inverse_deviation_;  // [c].
};

// Cross entropy: of logits [n, 1, 1, classes], which become probabilities, the
// sum of the samples' losses.
template <typename T>
T SoftmaxLoss(std::span<const int32_t> labels, Plane<T>& logits) {
  T loss = 0;
  for (size_t n = 0; n < labels.size(); ++n) {
    const std::span<T> z = std::span(logits.v).subspan(n * logits.c, logits.c);
    const T largest = *std::max_element(z.begin(), z.end());
    const T own = z[labels[n]] - largest;
    T sum = 0;
    for (T& v : z) sum += v = std::exp(v - largest);
    for (T& v : z) v /= sum;
    loss += std::log(sum) - own;
  }
  return loss;
}

// Its gradient in the logits, with a scale for each sample's loss.
template <typename T>
Plane<T> SoftmaxLossBackward(std::span<const int32_t> labels,
                             Plane<T> probabilities,
                             std::span<const T> scales) {
  for (size_t n = 0; n < labels.size(); ++n) {
    const std::span<T> d = std::span(probabilities.v)
                               .subspan(n * probabilities.c, probabilities.c);
    d[labels[n]] -= 1;
    for (T& v : d) v *= scales[n];
  }
  return probabilities;
}

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LAYERS_H_
