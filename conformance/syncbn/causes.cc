// Measures numbers against alternatives, in units of their bounds. Also finds
// the causes of every wrong output of a step except y.
#include "conformance/syncbn/causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_view.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

constexpr double kSlack = 4;

bool IsRight(double value, const Bounded& want, size_t i) {
  return std::fabs(value - want.value[i]) <= want.bound[i];
}

// Returns the error in bounds, at most kSlack. NaN counts as kSlack.
double Times(double off, double bound) {
  const double times = off == 0 ? 0 : std::fabs(off) / bound;
  return times < kSlack ? times : kSlack;
}

// Returns the running statistic [c] after `entering(c)` enters `before`.
template <typename Fn>
auto RunningAfter(std::span<const double> before, double weight, Fn entering) {
  return [before, weight, entering](size_t, size_t c) {
    return (1 - weight) * before[c] + weight * entering(c);
  };
}

// Returns the cause of a wrong running statistic [c] that was `before`.
// Candidates are `others` first, then another batch than `right` or another
// weight.
template <typename Right, typename Normalized, typename Own>
std::string CauseOfRunning(std::span<const double> before, double w,
                           const Bounded& want, std::span<const double> got,
                           Right right, Normalized normalized, Own own,
                           std::vector<Alternative> others) {
  const std::vector<Alternative> all = {
      {"nothing had entered", [before](size_t, size_t c) { return before[c]; }},
      {"momentum were inverted", RunningAfter(before, 1 - w, right)},
      {"the batch had entered twice", RunningAfter(before, w * (2 - w), right)},
      {"the normalised values had entered",
       RunningAfter(before, w, normalized)},
      {"this rank's own batch had entered", RunningAfter(before, w, own)}};
  others.insert(others.end(), all.begin(), all.end());
  return BestFit(got, want, {}, 1, want.size(), others);
}

}  // namespace

std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Alternative>& alternatives) {
  double least = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    least = std::max(least, Times(got[i] - want.value[i], want.bound[i]));
  }
  std::string name;
  for (const Alternative& alternative : alternatives) {
    double most = 0;
    bool is_rejected = false;
    for (size_t i = 0; i < got.size() && most < least; ++i) {
      const auto c =
          static_cast<size_t>(static_cast<int64_t>(i) / hw % channels);
      const double value = alternative.value(i, c);
      const double stretch =
          alternative.stretch == nullptr ? 1 : alternative.stretch(c);
      const double bound =
          stretch * want.bound[i] + precision.output_unit * std::fabs(value);
      is_rejected = is_rejected || !IsRight(value, want, i);
      most = std::max(most, Times(got[i] - value, bound));
    }
    if (is_rejected && most < least) {
      least = most;
      name = alternative.name;
    }
  }
  return name.empty() ? "" : absl::StrCat(", as if ", name);
}

std::string FirstChannelsOnly(std::span<const double> got, const Bounded& want,
                              int64_t hw, int64_t channels, int64_t channel) {
  constexpr int64_t kChannels = 64;
  if (channel < kChannels) return "";
  // For each channel, the right numbers minus the wrong ones.
  std::vector<int64_t> more_right(static_cast<size_t>(channels));
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t c = static_cast<int64_t>(i) / hw % channels;
    const bool is_right = IsRight(got[i], want, i);
    if (c < kChannels && !is_right) return "";
    more_right[static_cast<size_t>(c)] += is_right ? 1 : -1;
  }
  const bool are_wrong =
      std::all_of(more_right.begin() + kChannels, more_right.end(),
                  [](int64_t more) { return more < 0; });
  return are_wrong ? ", as if only the first 64 channels were computed" : "";
}

std::string NotWritten(std::span<const double> got, const Bounded& want,
                       const std::vector<bool>& unwritten) {
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (IsRight(got[i], want, i)) continue;
    if (!unwritten[i]) return "";
    ++wrong;
  }
  return absl::StrCat(", as if it had not been written, ", wrong, " of ",
                      got.size());
}

ChannelMoments MomentsOf(const ReferenceStatistics& statistics) {
  ChannelMoments result = {statistics.mean.value, statistics.m2.value};
  const double count = std::max(1.0, static_cast<double>(statistics.count));
  for (double& variance : result.variance) variance /= count;
  return result;
}

std::string CauseOfRunningMean(const StepView& view, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got) {
  const ReferenceStatistics own = view.OwnStatisticsOf(rank);
  return CauseOfRunning(
      before.mean, before.weight, want, got,
      [&](size_t c) { return view.solved_step().statistics.mean.value[c]; },
      [](size_t) { return 0.0; }, [&](size_t c) { return own.mean.value[c]; },
      {});
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
  return CauseOfRunning(
      before.variance, before.weight, want, got, right, normalized, own_alone,
      {{unbiased ? "the variance were biased" : "the variance were unbiased",
        RunningAfter(before.variance, before.weight,
                     over(unbiased ? n : n - 1))},
       {"this rank's own count were the global one",
        RunningAfter(before.variance, before.weight,
                     over(unbiased ? n * (k - 1) / k : n))}});
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
  // Returns dx of `upstream`, with s0 and s1 times the two sums in `sums`.
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

}  // namespace lockstep::conformance
