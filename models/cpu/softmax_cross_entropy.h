// The loss of classification.
#ifndef LOCKSTEP_MODELS_CPU_SOFTMAX_CROSS_ENTROPY_H_
#define LOCKSTEP_MODELS_CPU_SOFTMAX_CROSS_ENTROPY_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "models/model.h"

namespace lockstep {

// Errors: kInvalidArgument, naming the sample, if a label is not in
// [0, classes).
absl::Status CheckLabels(std::span<const int32_t> labels, int64_t classes);

// Sums -log softmax(logits)[label] over the samples and counts the samples
// whose label has the highest logit: of equal ones the first counts, and a
// sample with a NaN is never correct.
//
// logits: host float32 [n, classes], row-major. labels: host [n], each in
// [0, classes) (a precondition: see CheckLabels). gradient: host float32
// [n, classes], overwritten with gradient_scale * (softmax - onehot), rounded
// once from float64, may be `logits` itself; or empty: not wanted.
Metrics SoftmaxCrossEntropy(std::span<const float> logits,
                            std::span<const int32_t> labels, int64_t classes,
                            float gradient_scale, std::span<float> gradient);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_SOFTMAX_CROSS_ENTROPY_H_
