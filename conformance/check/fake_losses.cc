// The mean of each rank's losses, and what is taken for it.
#include "conformance/check/fake_losses.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "conformance/check/fake_fault.h"
#include "conformance/check/fake_model.h"
#include "conformance/protocol/case.h"

namespace lockstep {
namespace {

using Losses = std::vector<std::optional<double>>;

float MeanOf(const std::vector<float>& values) {
  const float sum = std::accumulate(values.begin(), values.end(), 0.0f);
  return sum / static_cast<float>(values.size());
}

// Mistakes that only several ranks make.
double Scaled(double loss, size_t count, int64_t batch_size, FakeFault fault) {
  if (fault == FakeFault::kReportsScaledLoss) return 1.1 * loss;
  if (fault == FakeFault::kReportsRoundedLoss) {
    return std::round(loss * 1000) / 1000;
  }
  if (fault == FakeFault::kReportsLossOfFullBatch) {
    return loss * static_cast<double>(count) / static_cast<double>(batch_size);
  }
  return loss;
}

}  // namespace

Losses FakeLosses(const Case& c,
                  const std::vector<std::vector<int64_t>>& shares,
                  const std::vector<FakePass>& passes, FakeFault fault) {
  std::vector<float> means;
  for (const FakePass& pass : passes) {
    means.push_back(pass.losses.empty() ? 0 : MeanOf(pass.losses));
  }
  const float sum = std::accumulate(means.begin(), means.end(), 0.0f);
  Losses losses;
  for (size_t r = 0; r < passes.size(); ++r) {
    std::optional<double>& loss = losses.emplace_back();
    if (!passes[r].losses.empty()) loss = means[r];
    if (fault == FakeFault::kReportsUnweightedLoss) {
      loss = sum / static_cast<float>(passes.size());
    }
    if (fault == FakeFault::kReportsSummedLoss) loss = sum;
    if (fault == FakeFault::kReportsFirstRanksLoss) loss = means[0];
    if (fault == FakeFault::kReportsMicroBatchLoss) {
      loss = means[r] / static_cast<float>(c.accumulate);
    }
    if (loss.has_value() && passes.size() > 1) {
      loss = Scaled(*loss, shares[r].size(), c.batch_sizes[r], fault);
    }
  }
  return losses;
}

}  // namespace lockstep
