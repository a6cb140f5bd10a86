// Batch norm from its formulas, in float64, with bounds.
#include "syncbn/testing/batch_norm_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/bounded.h"
#include "base/data_types.h"

namespace lockstep {
namespace {

constexpr double kOwnUnit = 0x1p-53;

// The numbers from which a channel's elements are computed.
struct Channel {
  double u;
  double mean;
  double e;  // The bound on the mean's error.
  double r;
  double e_r;
  double weight;
  double bias;
};

Channel ChannelOf(const ReferenceLayer& layer,
                  const ReferenceStatistics& statistics, int64_t c,
                  const Precision& precision) {
  const auto i = static_cast<size_t>(c);
  return {.u = precision.unit + kOwnUnit,
          .mean = statistics.mean.value[i],
          .e = statistics.mean.bound[i],
          .r = statistics.inverse_deviation.value[i],
          .e_r = statistics.inverse_deviation.bound[i],
          .weight = layer.weight[i],
          .bias = layer.bias[i]};
}

// Calls fn(index of the element) for every element of the channel.
template <typename Fn>
void ForChannel(const ReferenceLayer& layer, const ReferenceBatch& batch,
                int64_t c, Fn fn) {
  for (int64_t n = 0; n < batch.n; ++n) {
    const int64_t begin = (n * layer.channels + c) * layer.hw;
    for (int64_t i = begin; i < begin + layer.hw; ++i) {
      fn(static_cast<size_t>(i));
    }
  }
}

// Returns the bound on a number after rounding to the type of the outputs.
double Rounded(double value, double bound, const Precision& precision) {
  return bound + precision.output_unit * (std::fabs(value) + bound) +
         precision.output_smallest;
}

// Sets the inverse deviation and its bound. The variance is at least 0, and off
// by at most `error`.
void SetInverseDeviation(double variance, double error, double epsilon,
                         double u, double& value, double& bound) {
  value = 1 / std::sqrt(variance + epsilon);
  const double most = 1 / std::sqrt(std::max(variance - error, 0.0) + epsilon);
  const double least = 1 / std::sqrt(variance + error + epsilon);
  bound = std::max(most - value, value - least) + 4 * u * most;
}

void AddChannel(const ReferenceLayer& layer,
                std::span<const ReferenceBatch> ranks, int64_t c, double u,
                ReferenceStatistics& out) {
  const auto at = static_cast<size_t>(c);
  const double n = static_cast<double>(out.count);
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const ReferenceBatch& batch : ranks) {
    ForChannel(layer, batch, c, [&](size_t i) {
      sum += batch.x[i];
      low = std::min(low, batch.x[i]);
      high = std::max(high, batch.x[i]);
    });
  }
  const double mean = sum / n;
  double m2 = 0;
  for (const ReferenceBatch& batch : ranks) {
    ForChannel(layer, batch, c, [&](size_t i) {
      m2 += (batch.x[i] - mean) * (batch.x[i] - mean);
    });
  }
  const double largest = std::max(std::fabs(low), std::fabs(high));
  const double e = (n + 4) * u * (largest + 3 * (high - low));
  const double e2 = e * std::sqrt(2 * n * m2) + n * e * e;
  out.mean.value[at] = mean;
  out.mean.bound[at] = e;
  out.m2.value[at] = m2;
  out.m2.bound[at] = e2 + (n + 10) * u * (m2 + e2);
  SetInverseDeviation(m2 / n, out.m2.bound[at] / n + 2 * u * m2 / n,
                      layer.epsilon, u, out.inverse_deviation.value[at],
                      out.inverse_deviation.bound[at]);
}

ReferenceStatistics EmptyStatistics(const ReferenceLayer& layer) {
  ReferenceStatistics out;
  out.mean = Bounded(layer.channels);
  out.m2 = Bounded(layer.channels);
  out.inverse_deviation = Bounded(layer.channels);
  return out;
}

// S0 and S1 of one channel.
struct ChannelSums {
  double s0 = 0;
  double e_s0 = 0;
  double s1 = 0;
  double e_s1 = 0;
};

ChannelSums SumsOf(const ReferenceLayer& layer, const Channel& channel,
                   std::span<const ReferenceBatch> ranks,
                   std::span<const std::vector<double>> g, int64_t c,
                   double terms) {
  ChannelSums sums;
  const double r = channel.r + channel.e_r;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ForChannel(layer, ranks[rank], c, [&](size_t i) {
      const double gradient = g[rank][i];
      const double distance = ranks[rank].x[i] - channel.mean;
      const double far = std::fabs(distance);
      const double size = std::fabs(gradient);
      sums.s0 += gradient;
      sums.e_s0 += terms * channel.u * size;
      sums.s1 += gradient * distance * channel.r;
      sums.e_s1 += size * (channel.e * r + far * channel.e_r) +
                   (terms + 6) * channel.u * size * (far + channel.e) * r;
    });
  }
  return sums;
}

void SetInputGradient(const ReferenceLayer& layer, const Channel& channel,
                      const ChannelSums& sums, const ReferenceBatch& batch,
                      std::span<const double> g, int64_t c, double n,
                      const Precision& precision, Bounded& dx) {
  const double weight = std::fabs(channel.weight);
  const double r = channel.r + channel.e_r;
  const double s0 = sums.s0 / n;
  const double s1 = sums.s1 / n;
  const double e_s0 = sums.e_s0 / n;
  const double e_s1 = sums.e_s1 / n;
  ForChannel(layer, batch, c, [&](size_t i) {
    const double distance = batch.x[i] - channel.mean;
    const double far = std::fabs(distance);
    const double e_z = channel.e * r + far * channel.e_r;
    const double sums_size = std::fabs(s1) + e_s1;
    const double constant = std::fabs(g[i]) + std::fabs(s0) + e_s0;
    const double t = constant + (far + channel.e) * r * sums_size;
    const double p = constant + (std::fabs(batch.x[i]) +
                                 std::fabs(channel.mean) + channel.e) *
                                    r * sums_size;
    const double bound =
        weight *
        (channel.e_r * t + r * (e_s0 + e_z * sums_size + far * r * e_s1) +
         8 * channel.u * r * p);
    dx.value[i] =
        channel.weight * channel.r * (g[i] - s0 - distance * channel.r * s1);
    dx.bound[i] = Rounded(dx.value[i], bound, precision);
  });
}

}  // namespace

Precision PrecisionOf(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return {.unit = 0x1p-53, .output_smallest = 0x1p-1022};
    case DataType::kFloat16:
      return {
          .unit = 0x1p-24, .output_unit = 0x1p-11, .output_smallest = 0x1p-25};
    case DataType::kBFloat16:
      return {
          .unit = 0x1p-24, .output_unit = 0x1p-8, .output_smallest = 0x1p-126};
    default:
      return {.unit = 0x1p-24, .output_smallest = 0x1p-126};
  }
}

ReferenceStatistics StatisticsOf(const ReferenceLayer& layer,
                                 std::span<const ReferenceBatch> ranks,
                                 const Precision& precision) {
  ReferenceStatistics out = EmptyStatistics(layer);
  for (const ReferenceBatch& batch : ranks) out.count += batch.n * layer.hw;
  if (out.count == 0) return out;
  for (int64_t c = 0; c < layer.channels; ++c) {
    AddChannel(layer, ranks, c, precision.unit + kOwnUnit, out);
  }
  return out;
}

ReferenceStatistics ConstantStatistics(const ReferenceLayer& layer,
                                       std::span<const double> mean,
                                       std::span<const double> variance,
                                       const Precision& precision) {
  ReferenceStatistics out = EmptyStatistics(layer);
  out.constants = true;
  for (size_t c = 0; c < mean.size(); ++c) {
    out.mean.value[c] = mean[c];
    out.m2.value[c] = variance[c];
    SetInverseDeviation(
        variance[c], 0, layer.epsilon, precision.unit + kOwnUnit,
        out.inverse_deviation.value[c], out.inverse_deviation.bound[c]);
  }
  return out;
}

Bounded ReferenceBeforeRelu(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            const ReferenceBatch& batch,
                            const Precision& precision) {
  Bounded y(static_cast<int64_t>(batch.x.size()));
  for (int64_t c = 0; c < layer.channels; ++c) {
    const Channel channel = ChannelOf(layer, statistics, c, precision);
    const double r = channel.r + channel.e_r;
    const double weight = std::fabs(channel.weight);
    ForChannel(layer, batch, c, [&](size_t i) {
      const double x = batch.x[i];
      const double residual = batch.residual.empty() ? 0 : batch.residual[i];
      const double distance = x - channel.mean;
      const double sizes =
          weight * r * (std::fabs(x) + std::fabs(channel.mean) + channel.e) +
          std::fabs(channel.bias) + std::fabs(residual);
      const double bound =
          weight * (channel.e * r + std::fabs(distance) * channel.e_r) +
          8 * channel.u * sizes;
      y.value[i] =
          distance * channel.r * channel.weight + channel.bias + residual;
      y.bound[i] = Rounded(y.value[i], bound, precision);
    });
  }
  return y;
}

ReferenceResult ReferenceOf(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            std::span<const ReferenceBatch> ranks,
                            const Precision& precision) {
  ReferenceResult out;
  out.dweight = Bounded(layer.channels);
  out.dbias = Bounded(layer.channels);
  int64_t count = 0;
  for (const ReferenceBatch& batch : ranks) {
    count += batch.n * layer.hw;
    Bounded y = ReferenceBeforeRelu(layer, statistics, batch, precision);
    std::vector<double> g(batch.dy.size());
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = !layer.relu || y.value[i] > 0 ? batch.dy[i] : 0;
      if (layer.relu) y.value[i] = std::max(y.value[i], 0.0);
    }
    out.dx.emplace_back(y.size());
    out.y.push_back(std::move(y));
    out.dresidual.push_back(std::move(g));
  }
  for (int64_t c = 0; c < layer.channels; ++c) {
    const Channel channel = ChannelOf(layer, statistics, c, precision);
    const ChannelSums sums = SumsOf(layer, channel, ranks, out.dresidual, c,
                                    static_cast<double>(count));
    out.dbias.value[static_cast<size_t>(c)] = sums.s0;
    out.dbias.bound[static_cast<size_t>(c)] = sums.e_s0;
    out.dweight.value[static_cast<size_t>(c)] = sums.s1;
    out.dweight.bound[static_cast<size_t>(c)] = sums.e_s1;
    const ChannelSums entering = statistics.constants ? ChannelSums() : sums;
    const double n = std::max(1.0, static_cast<double>(statistics.count));
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      SetInputGradient(layer, channel, entering, ranks[rank],
                       out.dresidual[rank], c, n, precision, out.dx[rank]);
    }
  }
  return out;
}

ReferenceRunning EnterRunning(std::span<const double> mean,
                              std::span<const double> variance, double weight,
                              bool unbiased, const ReferenceStatistics& batch,
                              const Precision& precision) {
  ReferenceRunning out;
  out.mean = Bounded(static_cast<int64_t>(mean.size()));
  out.variance = Bounded(static_cast<int64_t>(mean.size()));
  out.mean.value.assign(mean.begin(), mean.end());
  out.variance.value.assign(variance.begin(), variance.end());
  if (batch.count == 0) return out;
  const double u = precision.unit + kOwnUnit;
  const double divisor = static_cast<double>(batch.count - (unbiased ? 1 : 0));
  const auto enter = [&](double old, double entering, double bound,
                         double& value, double& error) {
    value = (1 - weight) * old + weight * entering;
    error = weight * bound + 6 * u *
                                 ((1 - weight) * std::fabs(old) +
                                  weight * (std::fabs(entering) + bound));
  };
  for (size_t c = 0; c < mean.size(); ++c) {
    enter(mean[c], batch.mean.value[c], batch.mean.bound[c], out.mean.value[c],
          out.mean.bound[c]);
    enter(variance[c], batch.m2.value[c] / divisor, batch.m2.bound[c] / divisor,
          out.variance.value[c], out.variance.bound[c]);
  }
  return out;
}

}  // namespace lockstep
