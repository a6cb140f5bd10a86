#include "standin/cudnn/computation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"
#include "standin/elements.h"

namespace lockstep::standin::cudnn {
namespace {

using Kind = Operation::Kind;
using Sizes = std::array<int64_t, 4>;

// Calls visit(i, offset) for each element of a tensor [n, c, h, w] with these
// strides. `i` is the element's index in Values, and ascends.
template <typename Visit>
void ForEachElement(const Sizes& dims, const Sizes& strides,
                    const Visit& visit) {
  const auto& [n, c, h, w] = dims;
  size_t i = 0;
  for (int64_t in = 0; in < n; ++in) {
    for (int64_t ih = 0; ih < h; ++ih) {
      for (int64_t iw = 0; iw < w; ++iw) {
        const int64_t pixel =
            in * strides[0] + ih * strides[2] + iw * strides[3];
        for (int64_t ic = 0; ic < c; ++ic) {
          visit(i++, static_cast<size_t>(pixel + ic * strides[1]));
        }
      }
    }
  }
}

// Returns the strides of a tensor in Values.
Sizes StridesOf(const GraphTensor& t) {
  const auto& [n, c, h, w] = t.dims;
  return {h * w * c, 1, w * c, c};
}

// Returns these strides, but 0 in each dimension that has one element, so that
// the element is repeated.
Sizes Broadcast(const GraphTensor& t) {
  Sizes strides = StridesOf(t);
  for (size_t axis = 0; axis < 4; ++axis) {
    if (t.dims[axis] == 1) strides[axis] = 0;
  }
  return strides;
}

Values Zeros(const GraphTensor& t) {
  return Values(static_cast<size_t>(t.count()));
}

// Calls visit(x, w, y) for each pair of a pixel of x and a pixel of y that have
// a product, with the index of their first channels. w is the number of their
// weights' position in the kernel.
template <typename Visit>
void ForEachPair(const Operation& op, const Visit& visit) {
  const auto& [n, c, h, w] = op.x.dims;
  const auto& [k, unused, r, s] = op.w.dims;
  const int64_t out_h = op.y.dims[2], out_w = op.y.dims[3];
  for (int64_t pixel = 0; pixel < n * out_h * out_w; ++pixel) {
    const int64_t top = pixel / out_w % out_h * op.strides[0];
    const int64_t left = pixel % out_w * op.strides[1];
    for (int64_t weight = 0; weight < r * s; ++weight) {
      const int64_t row =
          top + weight / s * op.dilations[0] - op.pre_paddings[0];
      const int64_t column =
          left + weight % s * op.dilations[1] - op.pre_paddings[1];
      if (row < 0 || row >= h || column < 0 || column >= w) continue;
      const int64_t image = pixel / (out_h * out_w);
      visit(((image * h + row) * w + column) * c, weight, pixel * k);
    }
  }
}

// Adds a convolution or a gradient to the result, which is zero before. Loops
// run over the channels that are adjacent in memory.
void Convolve(const Operation& op, Values& x, Values& w, Values& y) {
  const int64_t c = op.x.dims[1], k = op.y.dims[1];
  const int64_t positions = op.w.dims[2] * op.w.dims[3];
  double* const px = x.data();
  double* const pw = w.data();
  double* const py = y.data();
  if (op.kind == Kind::kForward) {
    Values by_output(w.size());  // The weights as [r, s, c, k].
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < positions * c; ++i) {
        by_output[static_cast<size_t>(i * k + j)] = pw[j * positions * c + i];
      }
    }
    const double* const weights = by_output.data();
    ForEachPair(op, [&](int64_t in, int64_t position, int64_t out) {
      for (int64_t i = 0; i < c; ++i) {
        const double value = px[in + i];
        const double* const row = weights + (position * c + i) * k;
        for (int64_t j = 0; j < k; ++j) py[out + j] += value * row[j];
      }
    });
    return;
  }
  const bool of_input = op.kind == Kind::kInputGradient;
  ForEachPair(op, [&](int64_t in, int64_t position, int64_t out) {
    for (int64_t j = 0; j < k; ++j) {
      const double value = py[out + j];
      double* const row = pw + (j * positions + position) * c;
      double* const sums = of_input ? px + in : row;
      const double* const factors = of_input ? row : px + in;
      for (int64_t i = 0; i < c; ++i) sums[i] += value * factors[i];
    }
  });
}

// Returns the elementwise function of two numbers. Some ignore the second.
double Apply(Kind kind, double x, double b) {
  switch (kind) {
    case Kind::kAdd:
      return x + b;
    case Kind::kSubtract:
      return x - b;
    case Kind::kMultiply:
      return x * b;
    case Kind::kExp:
      return std::exp(x);
    default:
      return x < 0 ? 0 : x;
  }
}

Values Pointwise(const Operation& op, ValuesOfTensors& values) {
  const GraphTensor& second = op.w.exists() ? op.w : op.x;
  const Values& x = values[op.x.uid];
  const Values& b = values[second.uid];
  Values y = Zeros(op.y);
  ForEachElement(op.y.dims, Broadcast(second), [&](size_t i, size_t j) {
    y[i] = Apply(op.kind, x[i], b[j]);
  });
  return y;
}

Values Sum(const Operation& op, const Values& x) {
  Values y = Zeros(op.y);
  ForEachElement(op.x.dims, Broadcast(op.y),
                 [&](size_t i, size_t j) { y[j] += x[i]; });
  return y;
}

Values Reshape(const Operation& op, const Values& x) {
  Values memory(static_cast<size_t>(op.x.bytes() / SizeOf(TypeOf(op.x.type))));
  Values y = Zeros(op.y);
  ForEachElement(op.x.dims, op.x.strides,
                 [&](size_t i, size_t offset) { memory[offset] = x[i]; });
  ForEachElement(op.y.dims, op.y.strides,
                 [&](size_t i, size_t offset) { y[i] = memory[offset]; });
  return y;
}

// Returns the values of a factor as tensor cores multiply them. If the other
// factor has 16 bits, a virtual factor in float32 is rounded to that type.
Values Factor(const GraphTensor& t, const GraphTensor& other, Values values) {
  if (t.is_virtual && !t.is_16_bit() && other.is_16_bit()) {
    RoundTo(TypeOf(other.type), values);
  }
  return values;
}

// A matrix of a tensor [batch, head, row, column].
class Matrix {
 public:
  Matrix(const GraphTensor& t, Values& values, int64_t batch, int64_t head)
      : strides_(StridesOf(t)),
        data_(values.data() + batch * strides_[0] + head * strides_[1]) {}

  double& operator()(int64_t row, int64_t column) const {
    return data_[row * strides_[2] + column * strides_[3]];
  }

 private:
  Sizes strides_;
  double* data_;
};

Values Matmul(const Operation& op, ValuesOfTensors& values) {
  Values x = Factor(op.x, op.w, values[op.x.uid]);
  Values w = Factor(op.w, op.x, values[op.w.uid]);
  Values y = Zeros(op.y);
  const auto& [batches, heads, rows, columns] = op.y.dims;
  for (int64_t i = 0; i < batches * heads; ++i) {
    const Matrix mx(op.x, x, i / heads, i % heads);
    const Matrix mw(op.w, w, i / heads, i % heads);
    const Matrix my(op.y, y, i / heads, i % heads);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t k = 0; k < op.x.dims[3]; ++k) {
        for (int64_t column = 0; column < columns; ++column) {
          my(row, column) += mx(row, k) * mw(k, column);
        }
      }
    }
  }
  return y;
}

// Returns the scaled scores of one query with all keys.
Values Scores(const Operation& op, double scale, const Matrix& queries,
              const Matrix& keys, int64_t query) {
  Values scores(static_cast<size_t>(op.w.dims[2]));
  for (size_t key = 0; key < scores.size(); ++key) {
    for (int64_t k = 0; k < op.x.dims[3]; ++k) {
      scores[key] += queries(query, k) * keys(static_cast<int64_t>(key), k);
    }
    scores[key] *= scale;
  }
  return scores;
}

// Writes one query's output, from its scores. Returns the log of the sum of
// their exponentials. As on tensor cores, the exponentials, relative to the
// largest, are rounded to the type of v before they multiply v. Their sum, by
// which the output is divided at the end, is not rounded.
double AttendOnce(const Operation& op, Values scores, const Matrix& v,
                  const Matrix& output, int64_t query) {
  const double most = std::ranges::max(scores);
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - most);
    sum += score;
  }
  RoundTo(TypeOf(op.v.type), scores);
  for (int64_t k = 0; k < op.y.dims[3]; ++k) {
    for (size_t key = 0; key < scores.size(); ++key) {
      output(query, k) += scores[key] * v(static_cast<int64_t>(key), k);
    }
    output(query, k) /= sum;
  }
  return most + std::log(sum);
}

void Attend(const Operation& op, ValuesOfTensors& values) {
  const double scale = values[op.scale.uid][0];
  GraphTensor of_stats = op.stats;
  of_stats.dims = {op.x.dims[0], op.x.dims[1], op.x.dims[2], 1};
  Values output = Zeros(op.y), stats = Zeros(of_stats);
  const int64_t heads = op.x.dims[1];
  for (int64_t i = 0; i < op.x.dims[0] * heads; ++i) {
    const auto matrix = [&](const GraphTensor& t, Values& all) {
      return Matrix(t, all, i / heads, i % heads);
    };
    const Matrix q = matrix(op.x, values[op.x.uid]);
    const Matrix k = matrix(op.w, values[op.w.uid]);
    const Matrix v = matrix(op.v, values[op.v.uid]);
    const Matrix y = matrix(op.y, output);
    for (int64_t query = 0; query < op.x.dims[2]; ++query) {
      matrix(of_stats, stats)(query, 0) =
          AttendOnce(op, Scores(op, scale, q, k, query), v, y, query);
    }
  }
  values[op.y.uid] = std::move(output);
  if (op.stats.exists()) values[op.stats.uid] = std::move(stats);
}

}  // namespace

Values Load(const GraphTensor& t, const void* memory) {
  Values values = Zeros(t);
  ForEachElement(t.dims, t.strides, [&](size_t i, size_t offset) {
    values[i] =
        ReadElement(TypeOf(t.type), memory, static_cast<int64_t>(offset));
  });
  return values;
}

void Store(const GraphTensor& t, const Values& values, void* memory) {
  ForEachElement(t.dims, t.strides, [&](size_t i, size_t offset) {
    WriteElement(TypeOf(t.type), values[i], memory,
                 static_cast<int64_t>(offset));
  });
}

void RoundTo(DataType type, Values& values) {
  for (double& value : values) {
    float memory = 0;
    WriteElement(type, value, &memory, 0);
    value = ReadElement(type, &memory, 0);
  }
}

void Compute(const Operation& op, ValuesOfTensors& values) {
  const GraphTensor& result = *op.results().front();
  const auto compute = [&] {
    if (op.is_pointwise()) return Pointwise(op, values);
    if (op.kind == Kind::kMatmul) return Matmul(op, values);
    return op.kind == Kind::kSum ? Sum(op, values[op.x.uid])
                                 : Reshape(op, values[op.x.uid]);
  };
  if (op.is_convolution()) {
    values[result.uid] = Zeros(result);
    Convolve(op, values[op.x.uid], values[op.w.uid], values[op.y.uid]);
  } else if (op.kind == Kind::kAttention) {
    Attend(op, values);
  } else {
    values[result.uid] = compute();
  }
}

}  // namespace lockstep::standin::cudnn
