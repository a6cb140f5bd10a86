// Winograd's convolution F(4x4, 3x3) in plain loops, for 3x3 kernels at stride
// 1. A tile of 4x4 outputs takes 36 products, where direct convolution takes
// 144.
//
// Y = A' [ sum over c of (G w_c G') o (B' x_c B) ] A for a tile of 6x6 inputs x
// and a kernel w; o multiplies element by element. The matrices evaluate
// polynomials at 0, +-a, +-b and infinity, and interpolate.
//
// Sources: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
// arXiv 1509.09308, section 4. The points a = 5/8 and b = 3/2 are oneDNN's,
// which lose fewer bits than 1 and 2.
#ifndef LOCKSTEP_MODELS_REFERENCE_WINOGRAD_H_
#define LOCKSTEP_MODELS_REFERENCE_WINOGRAD_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/products.h"

namespace lockstep::reference {

// A row-major matrix.
template <typename T, size_t kRows, size_t kColumns>
using Matrix = std::array<std::array<T, kColumns>, kRows>;

// Returns left * x * left', where left' is the transpose of left.
template <typename T, size_t kRows, size_t kColumns>
Matrix<T, kRows, kRows> MultiplyBothSides(
    const Matrix<T, kRows, kColumns>& left,
    const Matrix<T, kColumns, kColumns>& x) {
  Matrix<T, kRows, kColumns> half = {};
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t k = 0; k < kColumns; ++k) {
      for (size_t j = 0; j < kColumns; ++j) half[i][j] += left[i][k] * x[k][j];
    }
  }
  Matrix<T, kRows, kRows> result = {};
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 0; j < kRows; ++j) {
      for (size_t k = 0; k < kColumns; ++k) {
        result[i][j] += half[i][k] * left[j][k];
      }
    }
  }
  return result;
}

template <typename T, size_t kRows, size_t kColumns>
Matrix<T, kColumns, kRows> Transposed(const Matrix<T, kRows, kColumns>& x) {
  Matrix<T, kColumns, kRows> result;
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 0; j < kColumns; ++j) result[j][i] = x[i][j];
  }
  return result;
}

// The matrices B', G and A'.
template <typename T>
struct WinogradMatrices {
  Matrix<T, 6, 6> input = {};
  Matrix<T, 6, 3> weights = {};
  Matrix<T, 4, 6> output = {};

  static WinogradMatrices Create() {
    constexpr double a = 0.625, b = 1.5, aa = a * a, bb = b * b;
    constexpr double points[] = {a, -a, b, -b};
    const double known[3][6] = {{aa * bb, 0, -(aa + bb), 0, 1, 0},
                                {0, 0, 0, 0, 0, 0},
                                {0, aa * bb, 0, -(aa + bb), 0, 1}};
    WinogradMatrices m;
    for (size_t j = 0; j < 6; ++j) {
      m.input[0][j] = static_cast<T>(known[0][j]);
      m.input[5][j] = static_cast<T>(known[2][j]);
    }
    m.weights[0][0] = static_cast<T>(1 / (aa * bb));
    m.weights[5][2] = 1;
    m.output[0][0] = 1;
    m.output[3][5] = 1;
    for (size_t at = 0; at < 4; ++at) {
      const double p = points[at];
      const double other = p * p == aa ? bb : aa;
      const double row[6] = {0, -p * other, -other, p, 1, 0};
      const double scale = 1 / (2 * p * p * (p * p - other));
      for (size_t j = 0; j < 6; ++j) {
        m.input[at + 1][j] = static_cast<T>(row[j]);
      }
      for (size_t j = 0; j < 3; ++j) {
        m.weights[at + 1][j] = static_cast<T>(scale * std::pow(p, j));
      }
      for (size_t i = 0; i < 4; ++i) {
        m.output[i][at + 1] = static_cast<T>(std::pow(p, i));
      }
    }
    return m;
  }
};

// Computes a 3x3 convolution at stride 1 and its gradients. T is float or
// double.
template <typename T>
class WinogradProducts {
 public:
  // magnitudes: whether to compute with the absolute values of all matrices and
  // all numbers. The bound on rounding is a multiple of that result
  // (WinogradBound).
  WinogradProducts(int64_t padding, int64_t in, int64_t out, bool magnitudes)
      : padding_(padding),
        in_(in),
        out_(out),
        magnitudes_(magnitudes),
        matrices_(WinogradMatrices<T>::Create()) {
    if (!magnitudes) return;
    const auto absolute = [](auto& matrix) {
      for (auto& row : matrix) {
        for (T& x : row) x = std::abs(x);
      }
    };
    absolute(matrices_.input);
    absolute(matrices_.weights);
    absolute(matrices_.output);
  }

  // weight: [out, in, 3, 3]. bias: may be empty. shape: y's shape.
  Plane<T> Forward(const Plane<T>& x, std::span<const T> weight,
                   std::span<const T> bias, const Shape& shape) const {
    const Tiles tiles(shape);
    const std::vector<T> kernels = Kernels(weight);
    const std::vector<T> inputs = InputTiles(x, tiles);
    std::vector<T> products(36 * tiles.count() * out_);
    for (int64_t point = 0; point < 36; ++point) {
      for (int64_t tile = 0; tile < tiles.count(); ++tile) {
        T* const to = &products[(point * tiles.count() + tile) * out_];
        for (int64_t i = 0; i < in_; ++i) {
          const T factor = inputs[(point * tiles.count() + tile) * in_ + i];
          const T* const from = &kernels[(point * in_ + i) * out_];
          for (int64_t o = 0; o < out_; ++o) to[o] += factor * from[o];
        }
      }
    }
    Plane<T> y(shape);
    for (int64_t tile = 0; tile < tiles.count(); ++tile) {
      for (int64_t o = 0; o < out_; ++o) {
        Matrix<T, 6, 6> sums;
        for (int64_t point = 0; point < 36; ++point) {
          sums[point / 6][point % 6] =
              products[(point * tiles.count() + tile) * out_ + o];
        }
        const Matrix<T, 4, 4> outputs =
            MultiplyBothSides(matrices_.output, sums);
        for (int64_t at = 0; at < 16; ++at) {
          const int64_t pixel = tiles.Pixel(tile, at / 4, at % 4);
          if (pixel < 0) continue;
          y.v[pixel * out_ + o] = outputs[at / 4][at % 4];
          if (!bias.empty()) y.v[pixel * out_ + o] += Number(bias[o]);
        }
      }
    }
    return y;
  }

  // Returns the gradient of an input of shape x: a convolution of dy with the
  // kernel rotated by 180 degrees.
  Plane<T> InputGradient(const Shape& x, std::span<const T> weight,
                         const Plane<T>& dy) const {
    std::vector<T> turned(weight.size());
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        for (int64_t tap = 0; tap < 9; ++tap) {
          turned[(i * out_ + o) * 9 + 8 - tap] =
              weight[(o * in_ + i) * 9 + tap];
        }
      }
    }
    return WinogradProducts(2 - padding_, out_, in_, magnitudes_)
        .Forward(dy, turned, {}, x);
  }

  // Overwrites dweight with G' [ sum over tiles of (B' x B) o (A dy A') ] G,
  // and dbias, unless it is empty, with the bias's gradient.
  void ParameterGradients(const Plane<T>& x, const Plane<T>& dy,
                          std::span<T> dweight, std::span<T> dbias) const {
    const Tiles tiles(dy.shape);
    const std::vector<T> inputs = InputTiles(x, tiles);
    const std::vector<T> deltas = DeltaTiles(dy, tiles);
    std::vector<T> products(36 * in_ * out_);
    for (int64_t at = 0; at < 36 * tiles.count(); ++at) {
      const int64_t point = at / tiles.count();
      for (int64_t i = 0; i < in_; ++i) {
        const T factor = inputs[at * in_ + i];
        T* const to = &products[(point * in_ + i) * out_];
        for (int64_t o = 0; o < out_; ++o)
          to[o] += factor * deltas[at * out_ + o];
      }
    }
    const Matrix<T, 3, 6> back = Transposed(matrices_.weights);
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        Matrix<T, 6, 6> sums;
        for (int64_t point = 0; point < 36; ++point) {
          sums[point / 6][point % 6] = products[(point * in_ + i) * out_ + o];
        }
        const Matrix<T, 3, 3> kernel = MultiplyBothSides(back, sums);
        for (int64_t tap = 0; tap < 9; ++tap) {
          dweight[(o * in_ + i) * 9 + tap] = kernel[tap / 3][tap % 3];
        }
      }
    }
    if (dbias.empty()) return;
    const std::vector<T> sums =
        dy.SumOverPixels([&](int64_t at, int64_t) { return Number(dy.v[at]); });
    std::ranges::copy(sums, dbias.begin());
  }

 private:
  // The tiles of an output, by sample, row and column: 4x4 pixels each.
  struct Tiles {
    explicit Tiles(const Shape& shape)
        : shape(shape), rows((shape.h + 3) / 4), columns((shape.w + 3) / 4) {}

    int64_t count() const { return shape.n * rows * columns; }
    // The tile's first row, first column and sample.
    int64_t Row(int64_t tile) const { return tile / columns % rows * 4; }
    int64_t Column(int64_t tile) const { return tile % columns * 4; }
    int64_t Sample(int64_t tile) const { return tile / (rows * columns); }
    // Returns the pixel in the tile's row i and column j, or -1 outside the
    // image.
    int64_t Pixel(int64_t tile, int64_t i, int64_t j) const {
      const int64_t h = Row(tile) + i, w = Column(tile) + j;
      if (h >= shape.h || w >= shape.w) return -1;
      return (Sample(tile) * shape.h + h) * shape.w + w;
    }

    Shape shape;
    int64_t rows, columns;
  };

  T Number(T x) const { return magnitudes_ ? std::abs(x) : x; }

  // Returns the transformed kernels: [36, in, out].
  std::vector<T> Kernels(std::span<const T> weight) const {
    std::vector<T> kernels(36 * in_ * out_);
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        Matrix<T, 3, 3> kernel;
        for (int64_t tap = 0; tap < 9; ++tap) {
          kernel[tap / 3][tap % 3] = Number(weight[(o * in_ + i) * 9 + tap]);
        }
        const Matrix<T, 6, 6> points =
            MultiplyBothSides(matrices_.weights, kernel);
        for (int64_t point = 0; point < 36; ++point) {
          kernels[(point * in_ + i) * out_ + o] = points[point / 6][point % 6];
        }
      }
    }
    return kernels;
  }

  // Returns the transformed inputs: [36, tiles, in].
  std::vector<T> InputTiles(const Plane<T>& x, const Tiles& tiles) const {
    std::vector<T> inputs(36 * tiles.count() * in_);
    for (int64_t tile = 0; tile < tiles.count(); ++tile) {
      for (int64_t i = 0; i < in_; ++i) {
        Matrix<T, 6, 6> pixels = {};
        for (int64_t at = 0; at < 36; ++at) {
          const int64_t h = tiles.Row(tile) + at / 6 - padding_;
          const int64_t w = tiles.Column(tile) + at % 6 - padding_;
          if (h < 0 || h >= x.shape.h || w < 0 || w >= x.shape.w) continue;
          const int64_t pixel =
              (tiles.Sample(tile) * x.shape.h + h) * x.shape.w + w;
          pixels[at / 6][at % 6] = Number(x.v[pixel * in_ + i]);
        }
        const Matrix<T, 6, 6> points =
            MultiplyBothSides(matrices_.input, pixels);
        for (int64_t point = 0; point < 36; ++point) {
          inputs[(point * tiles.count() + tile) * in_ + i] =
              points[point / 6][point % 6];
        }
      }
    }
    return inputs;
  }

  // Returns the transformed output gradients: [36, tiles, out].
  std::vector<T> DeltaTiles(const Plane<T>& dy, const Tiles& tiles) const {
    const Matrix<T, 6, 4> spread = Transposed(matrices_.output);
    std::vector<T> deltas(36 * tiles.count() * out_);
    for (int64_t tile = 0; tile < tiles.count(); ++tile) {
      for (int64_t o = 0; o < out_; ++o) {
        Matrix<T, 4, 4> pixels = {};
        for (int64_t at = 0; at < 16; ++at) {
          const int64_t pixel = tiles.Pixel(tile, at / 4, at % 4);
          if (pixel < 0) continue;
          pixels[at / 4][at % 4] = Number(dy.v[pixel * out_ + o]);
        }
        const Matrix<T, 6, 6> points = MultiplyBothSides(spread, pixels);
        for (int64_t point = 0; point < 36; ++point) {
          deltas[(point * tiles.count() + tile) * out_ + o] =
              points[point / 6][point % 6];
        }
      }
    }
    return deltas;
  }

  const int64_t padding_, in_, out_;
  const bool magnitudes_;
  WinogradMatrices<T> matrices_;
};

// Returns the bound on the error of a float32 Winograd convolution or gradient,
// as a multiple of the result of WinogradProducts(magnitudes = true). terms:
// the number of terms added up for a point of the transforms: input channels
// forward, output channels for the input's gradient, tiles for the weights'.
//
// In first order, each inner product of length n adds gamma(n) in any order
// (Higham, section 3.1); a matrix product on both sides adds it twice. Rows of
// B' have at most 4 nonzero numbers, rows of G 3, of A' 5, of A 4, and of G' 5.
// The numbers of G are rounded themselves, which adds 1 a side. The sums are 2
// (4 + 4 + 5) = 26 forward and 2 (4 + 4 + 6) = 28 for weights. The same
// analysis: Barabasz, Anderson, Soodhalter and Gregg, Error Analysis and
// Improving the Accuracy of Winograd Convolution for Deep Neural Networks, ACM
// TOMS 46(4), 2020, arXiv 1803.10986, theorem 2. gamma of the sum of the
// lengths also covers the second order (Higham, lemma 3.3).
inline double WinogradBound(int64_t terms) { return Gamma(terms + 28); }

// Returns the expected error of a float32 Winograd convolution, divided by the
// result, both as root mean squares, in units of rounding. A direct convolution
// that adds up the square of this number of products has the same expected
// error.
//
// Independent rounding errors of mean zero add up as squares: a sum of n
// numbers errs by sqrt(n), where WinogradBound has n (Higham and Mary, A New
// Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput.
// 41(5), 2019). Each of the 36 points therefore errs by sqrt(terms + 28),
// relative to its own root mean square.
//
// Inputs and weights are taken as independent numbers of variance 1. Point (i,
// j) then has variance terms * b_i b_j * g_i g_j: b and g are the sums of
// squares of the rows of B' and G. A' on both sides adds these variances up
// with the squares of its numbers as factors. The average over the 16 outputs
// is terms * (S / 4)^2, where S sums a_i b_i g_i over six points, and a is the
// sum of squares of a column of A'. An output has variance 9 terms, so the
// relative error grows by S / 12, which is 4.78.
//
// Gradients of weights sum points of variance b_i b_j * a_i a_j with the
// squares of G as factors. The average over 9 outputs is terms * (S / 3)^2. An
// output has variance 16 terms, so the factor is S / 12 as well. This analysis
// is valid for tiles inside an image. In tiles at its border, zeros among the
// inputs raise an output's relative error by up to a quarter.
//
// In the limit of many terms, the error is 1.59 times the error of direct
// convolution forward, with 9 products for each term. For weights, with 16
// products, the factor is 1.20.
inline double WinogradError(int64_t terms) {
  const auto matrices = WinogradMatrices<double>::Create();
  double sum = 0;
  for (size_t i = 0; i < 6; ++i) {
    double a = 0, b = 0, g = 0;
    for (const auto& row : matrices.output) a += row[i] * row[i];
    for (const double x : matrices.input[i]) b += x * x;
    for (const double x : matrices.weights[i]) g += x * x;
    sum += a * b * g;
  }
  return sum / 12 * std::sqrt(static_cast<double>(terms + 28));
}

}  // namespace lockstep::reference

#endif  // LOCKSTEP_MODELS_REFERENCE_WINOGRAD_H_
