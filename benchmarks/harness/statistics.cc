#include "benchmarks/harness/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace lockstep::benchmarks {

double Percentile(std::span<const double> samples, double p) {
  std::vector<double> sorted(samples.begin(), samples.end());
  const auto n = static_cast<double>(sorted.size());
  // p * n comes first, because it is exact for the usual p; p / 100 is not.
  const auto rank = static_cast<int64_t>(std::ceil(p * n / 100.0));
  const auto nth = sorted.begin() + std::max<int64_t>(rank, 1) - 1;
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

double Median(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t upper = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[upper];
  return (sorted[upper - 1] + sorted[upper]) / 2;
}

int64_t MedianIndex(std::span<const double> samples) {
  std::vector<int64_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return samples[a] < samples[b];
  });
  return order[(order.size() - 1) / 2];
}

double Mean(std::span<const double> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) /
         static_cast<double>(samples.size());
}

}  // namespace lockstep::benchmarks
