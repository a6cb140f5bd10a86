// Batch norm by its definition, in float64.
#include "syncbn/cuda/batch_norm_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_testing.h"

namespace lockstep {
namespace {

std::vector<double> RoundedTo(DataType type, std::vector<double> values) {
  for (double& value : values) value = Rounded(type, value);
  return values;
}

size_t ChannelAt(const Problem& p, size_t i) {
  return static_cast<size_t>(ChannelOf(p.shape, static_cast<int64_t>(i)));
}

double Normalized(const Problem& p, size_t i) {
  const size_t k = ChannelAt(p, i);
  return (p.x[i] - p.mean[k]) * p.inverse[k];
}

// Statistics in two passes, and y before ReLU.
void Normalize(double epsilon, Problem& p) {
  const double n = static_cast<double>(p.shape.values_per_channel());
  const auto channels = static_cast<size_t>(p.shape.c);
  p.mean.assign(channels, 0);
  p.variance.assign(channels, 0);
  p.inverse.clear();
  for (size_t i = 0; i < p.x.size(); ++i) p.mean[ChannelAt(p, i)] += p.x[i] / n;
  for (size_t i = 0; i < p.x.size(); ++i) {
    const double d = p.x[i] - p.mean[ChannelAt(p, i)];
    p.variance[ChannelAt(p, i)] += d * d / n;
  }
  for (const double v : p.variance) {
    p.inverse.push_back(1 / std::sqrt(v + epsilon));
  }
  p.y.clear();
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    p.y.push_back(Normalized(p, i) * p.weight[k] + p.bias[k] + p.residual[i]);
  }
}

// ReLU, and the gradients.
void GoBack(bool relu, Problem& p) {
  const double n = static_cast<double>(p.shape.values_per_channel());
  std::vector<double> sums(p.mean.size()), products(p.mean.size());
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    const bool passes = !relu || p.y[i] > 0;
    p.g.push_back(passes ? p.dy[i] : 0);
    if (!passes) p.y[i] = 0;
    sums[k] += p.g[i];
    products[k] += p.g[i] * Normalized(p, i);
  }
  for (size_t i = 0; i < p.x.size(); ++i) {
    const size_t k = ChannelAt(p, i);
    p.dx.push_back(p.weight[k] * p.inverse[k] *
                   (p.g[i] - sums[k] / n - Normalized(p, i) * products[k] / n));
  }
}

}  // namespace

Problem MakeProblem(const ProblemOptions& options) {
  Problem p;
  p.shape = options.shape;
  const int64_t size = p.shape.size();
  p.x = RoundedTo(options.type, RandomValues(size, 1, options.mean));
  p.residual = RoundedTo(options.type, RandomValues(size, 2));
  p.dy = RoundedTo(options.type, RandomValues(size, 3));
  p.weight = RoundedTo(DataType::kFloat32, RandomValues(p.shape.c, 4, 1, 0.2));
  p.bias = RoundedTo(DataType::kFloat32, RandomValues(p.shape.c, 5));
  Normalize(options.epsilon, p);
  // Rounding must not decide what ReLU does.
  for (size_t i = 0; i < p.y.size(); ++i) {
    if (std::abs(p.y[i]) < 0.1) {
      p.residual[i] = Rounded(options.type, p.residual[i] + 0.5);
    }
  }
  Normalize(options.epsilon, p);
  GoBack(options.relu, p);
  return p;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

ProblemErrors::ProblemErrors(const Problem& p) {
  const double inverse = Largest(p.inverse);
  const double weight = Largest(p.weight);
  const double g = Largest(p.g);
  const double n = static_cast<double>(p.shape.values_per_channel());
  double m = 0;  // The largest normalised x.
  for (size_t i = 0; i < p.x.size(); ++i) {
    m = std::max(m, std::abs(Normalized(p, i)));
  }
  mean = 64 * kRoundOff * Largest(p.x);
  scale = 56 * kRoundOff + mean * inverse;
  normalized = mean * inverse + m * scale;
  y = weight * normalized +
      8 * kRoundOff * (weight * m + Largest(p.bias) + Largest(p.residual));
  dx = weight * inverse *
       (scale * g * (2 + m * m) + 128 * kRoundOff * g +
        2 * m * g * (normalized + 128 * kRoundOff * m));
  gradient = n * g * (normalized + 128 * kRoundOff * (m + 1));
}

}  // namespace lockstep
