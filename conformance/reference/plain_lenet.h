// LeNet in the plainest loops there are, in any precision and with its sums
// taken in either order: the second opinion on LeNetReference. Test only.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LENET_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LENET_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// All arithmetic is in T; tensors are [c, h, w]. `reversed` runs every loop
// backwards, so that every sum is taken in the opposite order.
template <typename T>
class PlainLeNet {
 public:
  PlainLeNet(std::span<const T> parameters, bool reversed)
      : p_(parameters), reversed_(reversed), gradient_(parameters.size()) {}

  // Adds the gradients of scale * loss of one image; returns the loss.
  T Step(const std::vector<T>& x, int label, T scale) {
    const std::vector<T> z1 = Conv(x, {1, 28, 3, 20}, 0);
    const std::vector<T> h1 = Pool(Relu(z1), 26, 20);
    const std::vector<T> z2 = Conv(h1, {20, 13, 5, 50}, 200);
    const std::vector<T> h2 = Pool(Relu(z2), 9, 50);
    const std::vector<T> z3 = Linear(h2, 128, 25250);
    const std::vector<T> h3 = Relu(z3);
    const std::vector<T> z4 = Linear(h3, 10, 127778);
    std::vector<T> d4(10);
    const T largest = *std::max_element(z4.begin(), z4.end());
    T sum = 0;
    For(10, [&](int k) { sum += std::exp(z4[k] - largest); });
    for (int k = 0; k < 10; ++k) {
      d4[k] = (std::exp(z4[k] - largest) / sum - T(k == label)) * scale;
    }
    std::vector<T> d3 = LinearBackward(h3, d4, 127778);
    ReluBackward(z3, d3);
    std::vector<T> d2 = PoolBackward(LinearBackward(h2, d3, 25250), 9, 50);
    ReluBackward(z2, d2);
    std::vector<T> d1 =
        PoolBackward(ConvBackward(h1, {20, 13, 5, 50}, d2, 200), 26, 20);
    ReluBackward(z1, d1);
    ConvBackward(x, {1, 28, 3, 20}, d1, 0);
    return std::log(sum) - (z4[label] - largest);
  }

  const std::vector<T>& gradient() const { return gradient_; }

 private:
  struct Shape {
    int in_channels, side, kernel, out_channels;
    int out_side() const { return side - kernel + 1; }
    int weights() const { return out_channels * in_channels * kernel * kernel; }
  };

  template <typename F>
  void For(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(static_cast<int>(reversed_ ? n - 1 - i : i));
    }
  }

  // Calls f(output, input, weight) for every product of a convolution.
  template <typename F>
  void ForTaps(const Shape& s, F f) const {
    const int n = s.out_side();
    For(s.out_channels * n * n, [&](int out) {
      const int o = out / (n * n), y = out / n % n, x = out % n;
      For(s.in_channels * s.kernel * s.kernel, [&](int t) {
        const int c = t / (s.kernel * s.kernel);
        const int ky = t / s.kernel % s.kernel, kx = t % s.kernel;
        f(out, (c * s.side + y + ky) * s.side + x + kx,
          o * s.in_channels * s.kernel * s.kernel + t);
      });
    });
  }

  std::vector<T> Conv(const std::vector<T>& in, const Shape& s, int at) {
    const int area = s.out_side() * s.out_side();
    std::vector<T> out(s.out_channels * area);
    ForTaps(s, [&](int o, int i, int w) { out[o] += p_[at + w] * in[i]; });
    for (size_t o = 0; o < out.size(); ++o) {
      out[o] += p_[at + s.weights() + o / area];
    }
    return out;
  }

  std::vector<T> ConvBackward(const std::vector<T>& in, const Shape& s,
                              const std::vector<T>& delta, int at) {
    std::vector<T> d(in.size());
    ForTaps(s, [&](int o, int i, int w) {
      gradient_[at + w] += delta[o] * in[i];
      d[i] += delta[o] * p_[at + w];
    });
    const int area = s.out_side() * s.out_side();
    For(delta.size(),
        [&](int o) { gradient_[at + s.weights() + o / area] += delta[o]; });
    return d;
  }

  std::vector<T> Linear(const std::vector<T>& in, int outputs, int at) {
    std::vector<T> out(outputs);
    For(in.size(), [&](int i) {
      for (int o = 0; o < outputs; ++o) {
        out[o] += in[i] * p_[at + i * outputs + o];
      }
    });
    for (int o = 0; o < outputs; ++o) {
      out[o] += p_[at + in.size() * outputs + o];
    }
    return out;
  }

  std::vector<T> LinearBackward(const std::vector<T>& in,
                                const std::vector<T>& delta, int at) {
    const int outputs = static_cast<int>(delta.size());
    std::vector<T> d(in.size());
    For(in.size(), [&](int i) {
      For(outputs, [&](int o) {
        gradient_[at + i * outputs + o] += in[i] * delta[o];
        d[i] += delta[o] * p_[at + i * outputs + o];
      });
    });
    for (int o = 0; o < outputs; ++o) {
      gradient_[at + in.size() * outputs + o] += delta[o];
    }
    return d;
  }

  static std::vector<T> Relu(std::vector<T> z) {
    for (T& v : z) v = std::max(v, T(0));
    return z;
  }

  static void ReluBackward(const std::vector<T>& z, std::vector<T>& delta) {
    for (size_t i = 0; i < z.size(); ++i) {
      if (!(z[i] > 0)) delta[i] = 0;
    }
  }

  static std::vector<T> Pool(const std::vector<T>& in, int side, int channels) {
    const int half = side / 2;
    std::vector<T> out(channels * half * half);
    for (size_t i = 0; i < out.size(); ++i) {
      const int at = TopLeft(static_cast<int>(i), side);
      out[i] = (in[at] + in[at + 1] + in[at + side] + in[at + side + 1]) / 4;
    }
    return out;
  }

  static std::vector<T> PoolBackward(const std::vector<T>& delta, int side,
                                     int channels) {
    std::vector<T> in(channels * side * side);
    for (size_t i = 0; i < delta.size(); ++i) {
      const int at = TopLeft(static_cast<int>(i), side);
      in[at] = in[at + 1] = in[at + side] = in[at + side + 1] = delta[i] / 4;
    }
    return in;
  }

  // The first input of the block that pooled output i averages.
  static int TopLeft(int i, int side) {
    const int half = side / 2;
    const int channel = i / (half * half), y = i / half % half, x = i % half;
    return (channel * side + 2 * y) * side + 2 * x;
  }

  std::span<const T> p_;
  bool reversed_;
  std::vector<T> gradient_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_PLAIN_LENET_H_
