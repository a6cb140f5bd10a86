// The causes of running statistics and of parameters' gradients.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"

namespace lockstep {

std::string CauseOfRunningMean(const StepView& view, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got) {
  const ReferenceStatistics& batch = view.solved_step().statistics;
  const ReferenceStatistics own = view.OwnStatisticsOf(rank);
  const double w = before.weight;
  const auto enter = [](double old, double weight, double value) {
    return (1 - weight) * old + weight * value;
  };
  return BestFit(
      got, want, {}, 1, view.solved.problem.channels,
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
  const ReferenceStatistics& batch = view.solved_step().statistics;
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
      got, want, {}, 1, view.solved.problem.channels,
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

std::string CauseOfInputGradient(const StepView& view, int rank,
                                 int64_t channel, std::span<const double> got) {
  const SolvedProblem& solved = view.solved;
  const ReferenceBatch& batch = view.BatchOn(rank);
  const ReferenceResult& result = view.WantOn(rank);
  const Bounded& want = result.dx[view.IndexOf(rank)];
  const std::string first = FirstChannelsOnly(got, want, solved.problem.hw,
                                              solved.problem.channels, channel);
  if (!first.empty()) return first;
  const ReferenceStatistics& right = view.StatisticsOn(rank);
  const std::vector<double>& g = result.dresidual[view.IndexOf(rank)];
  const ReferenceResult alone =
      ReferenceOf(solved.layer, right, {&batch, 1}, solved.precision);
  const double n = std::max(1.0, static_cast<double>(right.count));
  const double own_n =
      std::max(1.0, static_cast<double>(batch.n * solved.problem.hw));
  // With sums of the ranks in `sums`, times s0 and s1, of `upstream`.
  const auto with = [&](const ReferenceResult& sums, double s0, double s1,
                        const std::vector<double>& upstream) {
    return [&, s0, s1](size_t i, size_t c) {
      const double r = right.inverse_deviation.value[c];
      const double z = (batch.x[i] - right.mean.value[c]) * r;
      return solved.layer.weight[c] * r *
             (upstream[i] - s0 * sums.dbias.value[c] -
              z * s1 * sums.dweight.value[c]);
    };
  };
  return BestFit(
      got, want, solved.precision, solved.problem.hw, solved.problem.channels,
      {{"it was 0", [](size_t, size_t) { return 0.0; }},
       {"the term of sum g z were missing", with(result, 1 / n, 0, g)},
       {"the term of sum g were missing", with(result, 0, 1 / n, g)},
       {"mean and variance were constants", with(result, 0, 0, g)},
       {"the sums were this rank's own", with(alone, 1 / own_n, 1 / own_n, g)},
       {"the sums were this rank's own, over the global count",
        with(alone, 1 / n, 1 / n, g)},
       {"ReLU let every gradient through",
        with(result, 1 / n, 1 / n, batch.dy)}});
}

std::string CauseOfParameterGradient(const StepView& view, const Bounded& want,
                                     Bounded ReferenceResult::*gradient,
                                     std::span<const double> own,
                                     std::span<const double> got) {
  ReferenceLayer open = view.solved.layer;
  open.relu = false;
  const ReferenceResult through =
      ReferenceOf(open, view.StatisticsOn(0), view.solved_step().ranks,
                  view.solved.precision);
  return BestFit(
      got, want, {}, 1, view.solved.problem.channels,
      {{"ReLU let every gradient through",
        [&](size_t, size_t c) { return (through.*gradient).value[c]; }},
       {"it was 0", [](size_t, size_t) { return 0.0; }},
       {"each rank had the sum over all ranks",
        [&](size_t, size_t c) { return want.value[c] * view.world_size(); }},
       {"the other ranks' parts were lost",
        [&](size_t, size_t c) { return own[c]; }}});
}

std::string CauseOfResidualGradient(const StepView& view, int rank,
                                    std::span<const double> got) {
  const std::vector<double>& dy = view.BatchOn(rank).dy;
  return std::equal(got.begin(), got.end(), dy.begin(), dy.end())
             ? ", as if ReLU let every gradient through"
             : "";
}

}  // namespace lockstep
