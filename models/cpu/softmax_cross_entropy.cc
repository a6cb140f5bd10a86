// In float64: it is a thousandth of a step, and softmax - 1 cancels.
#include "models/cpu/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

bool IsCorrect(std::span<const float> logits, int32_t label) {
  for (size_t k = 0; k < logits.size(); ++k) {
    // Written so that a NaN on either side fails.
    const bool below = static_cast<int32_t>(k) < label
                           ? logits[k] < logits[label]
                           : logits[k] <= logits[label];
    if (!below) return false;
  }
  return true;
}

// The loss of one sample; its gradient unless that is empty.
double SampleLoss(std::span<const float> logits, int32_t label, double scale,
                  std::span<float> gradient) {
  // Subtracting the highest keeps every exponential in (0, 1].
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - highest);
  const double log_sum = std::log(sum) + highest;
  const double loss = log_sum - logits[label];
  for (size_t k = 0; k < gradient.size(); ++k) {
    const double onehot = static_cast<int32_t>(k) == label ? 1 : 0;
    gradient[k] = static_cast<float>(
        scale * (std::exp(logits[k] - highest) / sum - onehot));
  }
  return loss;
}

}  // namespace

absl::Status CheckLabels(std::span<const int32_t> labels, int64_t classes) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= classes) {
      return absl::InvalidArgumentError(
          absl::StrCat("label ", labels[i], " of sample ", i, " is not in [0, ",
                       classes, ")"));
    }
  }
  return absl::OkStatus();
}

Metrics SoftmaxCrossEntropy(std::span<const float> logits,
                            std::span<const int32_t> labels, int64_t classes,
                            float gradient_scale, std::span<float> gradient) {
  Metrics metrics;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * classes, classes);
    if (IsCorrect(row, labels[i])) ++metrics.correct;
    metrics.loss_sum += SampleLoss(
        row, labels[i], gradient_scale,
        gradient.empty() ? gradient : gradient.subspan(i * classes, classes));
  }
  metrics.samples = static_cast<int64_t>(labels.size());
  return metrics;
}

}  // namespace lockstep
