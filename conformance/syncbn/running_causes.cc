// What known mistakes would have left in the running statistics.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/best_fit.h"
#include "conformance/syncbn/step_view.h"

namespace lockstep {

std::string CauseOfRunningMean(const StepView& view, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got) {
  const ReferenceStatistics& batch = view.exam_step().statistics;
  const ReferenceStatistics own = view.OwnStatisticsOf(rank);
  const double w = before.weight;
  const auto enter = [](double old, double weight, double value) {
    return (1 - weight) * old + weight * value;
  };
  return BestFit(
      got, want, {}, 1, view.exam.problem.channels,
      {{"nothing had entered",
        [&](size_t, size_t c) { return before.mean[c]; }},
       {"momentum were inverted",
        [&](size_t, size_t c) {
          return enter(before.mean[c], 1 - w, batch.mean.value[c]);
        }},
       {"the batch had entered twice",
        [&](size_t, size_t c) {
          return enter(enter(before.mean[c], w, batch.mean.value[c]), w,
                       batch.mean.value[c]);
        }},
       {"the normalised values had entered",
        [&](size_t, size_t c) { return enter(before.mean[c], w, 0); }},
       {"this rank's own batch had entered", [&](size_t, size_t c) {
          return enter(before.mean[c], w, own.mean.value[c]);
        }}});
}

std::string CauseOfRunningVariance(const StepView& view, int rank,
                                   const RunningBefore& before,
                                   const Bounded& want,
                                   std::span<const double> got) {
  const ReferenceStatistics& batch = view.exam_step().statistics;
  const ReferenceStatistics own = view.OwnStatisticsOf(rank);
  const double n = static_cast<double>(batch.count);
  const double k = static_cast<double>(own.count);
  const bool unbiased = view.variant.semantics.unbiased_running_variance;
  const double w = before.weight;
  // The running variance after `entering`, of channel c, has entered.
  const auto enter = [&before](double weight, auto entering) {
    return [&before, weight, entering](size_t, size_t c) {
      return (1 - weight) * before.variance[c] + weight * entering(c);
    };
  };
  const auto over = [&batch](double divisor) {
    return [&batch, divisor](size_t c) { return batch.m2.value[c] / divisor; };
  };
  const auto right = over(unbiased ? n - 1 : n);
  const auto normalized = [&](size_t c) {
    const double r = batch.inverse_deviation.value[c];
    return right(c) * r * r;
  };
  const auto own_alone = [&](size_t c) {
    return own.m2.value[c] / (unbiased ? k - 1 : k);
  };
  return BestFit(
      got, want, {}, 1, view.exam.problem.channels,
      {{"nothing had entered",
        [&](size_t, size_t c) { return before.variance[c]; }},
       {unbiased ? "the variance were biased" : "the variance were unbiased",
        enter(w, over(unbiased ? n : n - 1))},
       {"this rank's own count were the global one",
        enter(w, over(unbiased ? n * (k - 1) / k : n))},
       {"momentum were inverted", enter(1 - w, right)},
       {"the batch had entered twice", enter(w * (2 - w), right)},
       {"the normalised values had entered", enter(w, normalized)},
       {"this rank's own batch had entered", enter(w, own_alone)}});
}

}  // namespace lockstep
