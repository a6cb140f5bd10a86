// Convolution as a sum over the taps of its kernel, each a product of matrices;
// batch norm from its definition.
#include "conformance/network/plain_layers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kMomentum = 0.1;

// One tap of a kernel: which input pixel meets which output pixel.
struct Tap {
  int64_t row = 0, column = 0;
  std::vector<int64_t> inputs, outputs;  // Numbers of pixels, pairwise.
};

template <typename T>
std::vector<Tap> TapsOf(const PlainConvolution& conv, const Plane<T>& x,
                        const Plane<T>& y) {
  std::vector<Tap> taps;
  for (int64_t row = 0; row < conv.kernel; ++row) {
    for (int64_t column = 0; column < conv.kernel; ++column) {
      Tap tap{row, column, {}, {}};
      for (int64_t pixel = 0; pixel < y.pixels(); ++pixel) {
        const int64_t sample = pixel / (y.h * y.w);
        const int64_t i =
            pixel / y.w % y.h * conv.stride + row - conv.kernel / 2;
        const int64_t j = pixel % y.w * conv.stride + column - conv.kernel / 2;
        if (i < 0 || i >= x.h || j < 0 || j >= x.w) continue;
        tap.inputs.push_back((sample * x.h + i) * x.w + j);
        tap.outputs.push_back(pixel);
      }
      taps.push_back(std::move(tap));
    }
  }
  return taps;
}

// Row to[r] of y += row from[r] of x times b, for every r, where b is [rows,
// columns]. Four rows of b at a time, so that y is not the bottleneck.
template <typename T>
void AddProducts(std::span<const int64_t> from, std::span<const int64_t> to,
                 std::span<const T> x, std::span<const T> b, int64_t rows,
                 int64_t columns, std::span<T> y) {
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
template <typename T>
std::vector<T> TapMatrix(const PlainConvolution& conv, const Tap& tap,
                         std::span<const T> weight, bool transposed) {
  std::vector<T> b(conv.in * conv.out);
  const int64_t taps = conv.kernel * conv.kernel;
  const T* w = &weight[tap.row * conv.kernel + tap.column];
  for (int64_t o = 0; o < conv.out; ++o) {
    for (int64_t i = 0; i < conv.in; ++i) {
      b[transposed ? o * conv.in + i : i * conv.out + o] =
          w[(o * conv.in + i) * taps];
    }
  }
  return b;
}

// dweight of one tap: the sum over its pixel pairs of x dy^T.
template <typename T>
void TapGradient(const PlainConvolution& conv, const Tap& tap,
                 const Plane<T>& x, const Plane<T>& dy, std::span<T> dweight) {
  // x transposed, [in, pairs], so that the product's rows are inputs.
  const int64_t pairs = static_cast<int64_t>(tap.inputs.size());
  std::vector<T> columns(conv.in * pairs);
  std::vector<T> rows(pairs * conv.out);
  for (int64_t r = 0; r < pairs; ++r) {
    for (int64_t i = 0; i < conv.in; ++i) {
      columns[i * pairs + r] = x.v[tap.inputs[r] * conv.in + i];
    }
    std::copy_n(&dy.v[tap.outputs[r] * conv.out], conv.out,
                &rows[r * conv.out]);
  }
  std::vector<int64_t> inputs(conv.in);
  for (int64_t i = 0; i < conv.in; ++i) inputs[i] = i;
  std::vector<T> product(conv.in * conv.out);
  AddProducts<T>(inputs, inputs, columns, rows, pairs, conv.out, product);
  const int64_t taps = conv.kernel * conv.kernel;
  T* d = &dweight[tap.row * conv.kernel + tap.column];
  for (int64_t o = 0; o < conv.out; ++o) {
    for (int64_t i = 0; i < conv.in; ++i) {
      d[(o * conv.in + i) * taps] = product[i * conv.out + o];
    }
  }
}

// Adds f(pixel, channel) up over the pixels.
template <typename T, typename F>
std::vector<T> SumOverPixels(const Plane<T>& x, F f) {
  std::vector<T> sums(x.c);
  for (int64_t pixel = 0; pixel < x.pixels(); ++pixel) {
    for (int64_t c = 0; c < x.c; ++c) sums[c] += f(pixel * x.c + c, c);
  }
  return sums;
}

}  // namespace

template <typename T>
Plane<T> PlainConvolution::Forward(const Plane<T>& x, std::span<const T> weight,
                                   std::span<const T> bias) const {
  Plane<T> y(x.n, (x.h - 1) / stride + 1, (x.w - 1) / stride + 1, out);
  for (int64_t pixel = 0; pixel < y.pixels(); ++pixel) {
    std::copy(bias.begin(), bias.end(), y.v.begin() + pixel * out);
  }
  for (const Tap& tap : TapsOf(*this, x, y)) {
    if (tap.inputs.empty()) continue;
    AddProducts<T>(tap.inputs, tap.outputs, x.v,
                   TapMatrix(*this, tap, weight, /*transposed=*/false), in, out,
                   y.v);
  }
  return y;
}

template <typename T>
Plane<T> PlainConvolution::Backward(const Plane<T>& x,
                                    std::span<const T> weight,
                                    const Plane<T>& dy, bool input_gradient,
                                    std::span<T> dweight,
                                    std::span<T> dbias) const {
  const std::vector<T> sums =
      SumOverPixels(dy, [&](int64_t at, int64_t) { return dy.v[at]; });
  std::copy(sums.begin(), sums.end(), dbias.begin());
  std::fill(dweight.begin(), dweight.end(), T{0});
  Plane<T> dx;
  if (input_gradient) dx = Plane<T>(x.n, x.h, x.w, x.c);
  for (const Tap& tap : TapsOf(*this, x, dy)) {
    if (tap.inputs.empty()) continue;
    TapGradient(*this, tap, x, dy, dweight);
    if (!input_gradient) continue;
    AddProducts<T>(tap.outputs, tap.inputs, dy.v,
                   TapMatrix(*this, tap, weight, /*transposed=*/true), out, in,
                   dx.v);
  }
  return dx;
}

template <typename T>
Plane<T> NormTrain(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias, std::span<T> running_mean,
                   std::span<T> running_var, NormState<T>& state) {
  const T count = static_cast<T>(x.pixels());
  std::vector<T> mean =
      SumOverPixels(x, [&](int64_t at, int64_t) { return x.v[at]; });
  for (T& m : mean) m /= count;
  const std::vector<T> m2 = SumOverPixels(x, [&](int64_t at, int64_t c) {
    return (x.v[at] - mean[c]) * (x.v[at] - mean[c]);
  });
  state.normalised = x;
  state.inverse_deviation.resize(x.c);
  const T weight_of_batch = static_cast<T>(kMomentum);
  for (int64_t c = 0; c < x.c; ++c) {
    state.inverse_deviation[c] =
        1 / std::sqrt(m2[c] / count + static_cast<T>(kEpsilon));
    running_mean[c] += weight_of_batch * (mean[c] - running_mean[c]);
    running_var[c] += weight_of_batch * (m2[c] / (count - 1) - running_var[c]);
  }
  Plane<T> y = x;
  for (int64_t at = 0; at < static_cast<int64_t>(y.v.size()); ++at) {
    const int64_t c = at % x.c;
    state.normalised.v[at] = (x.v[at] - mean[c]) * state.inverse_deviation[c];
    y.v[at] = state.normalised.v[at] * weight[c] + bias[c];
  }
  return y;
}

template <typename T>
Plane<T> NormEvaluate(const Plane<T>& x, std::span<const T> weight,
                      std::span<const T> bias, std::span<const T> running_mean,
                      std::span<const T> running_var) {
  Plane<T> y = x;
  for (int64_t at = 0; at < static_cast<int64_t>(y.v.size()); ++at) {
    const int64_t c = at % x.c;
    const T deviation = std::sqrt(running_var[c] + static_cast<T>(kEpsilon));
    y.v[at] = (x.v[at] - running_mean[c]) / deviation * weight[c] + bias[c];
  }
  return y;
}

template <typename T>
Plane<T> NormBackward(const NormState<T>& state, std::span<const T> weight,
                      const Plane<T>& dy, std::span<T> dweight,
                      std::span<T> dbias) {
  const Plane<T>& normalised = state.normalised;
  const std::vector<T> sum =
      SumOverPixels(dy, [&](int64_t at, int64_t) { return dy.v[at]; });
  const std::vector<T> dot = SumOverPixels(
      dy, [&](int64_t at, int64_t) { return dy.v[at] * normalised.v[at]; });
  std::copy(sum.begin(), sum.end(), dbias.begin());
  std::copy(dot.begin(), dot.end(), dweight.begin());
  const T count = static_cast<T>(dy.pixels());
  Plane<T> dx = dy;
  for (int64_t at = 0; at < static_cast<int64_t>(dx.v.size()); ++at) {
    const int64_t c = at % dx.c;
    dx.v[at] = weight[c] * state.inverse_deviation[c] *
               (dy.v[at] - sum[c] / count - normalised.v[at] * dot[c] / count);
  }
  return dx;
}

#define LOCKSTEP_PLAIN_LAYERS(T)                                              \
  template Plane<T> PlainConvolution::Forward(                                \
      const Plane<T>&, std::span<const T>, std::span<const T>) const;         \
  template Plane<T> PlainConvolution::Backward(                               \
      const Plane<T>&, std::span<const T>, const Plane<T>&, bool,             \
      std::span<T>, std::span<T>) const;                                      \
  template Plane<T> NormTrain(const Plane<T>&, std::span<const T>,            \
                              std::span<const T>, std::span<T>, std::span<T>, \
                              NormState<T>&);                                 \
  template Plane<T> NormEvaluate(const Plane<T>&, std::span<const T>,         \
                                 std::span<const T>, std::span<const T>,      \
                                 std::span<const T>);                         \
  template Plane<T> NormBackward(const NormState<T>&, std::span<const T>,     \
                                 const Plane<T>&, std::span<T>, std::span<T>)
LOCKSTEP_PLAIN_LAYERS(float);
LOCKSTEP_PLAIN_LAYERS(double);
#undef LOCKSTEP_PLAIN_LAYERS

}  // namespace lockstep
