// Measures numbers against alternatives, in units of their bounds; and the
// causes of all that a step gives but y.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {
namespace {

constexpr double kSlack = 4;

bool IsRight(double value, const Bounded& want, size_t i) {
  return std::fabs(value - want.value[i]) <= want.bound[i];
}

// How many bounds that is, at most kSlack, which NaN is.
double Times(double off, double bound) {
  const double times = off == 0 ? 0 : std::fabs(off) / bound;
  return times < kSlack ? times : kSlack;
}

// Sums of values and their squares, each addition rounded.
struct SquareSums {
  DataType type;
  double count = 0;
  double sum = 0;
  double squares = 0;

  void Add(double x) {
    ++count;
    sum = RoundTo(type, sum + x);
    squares = RoundTo(type, squares + RoundTo(type, x * x));
  }
  void Add(const SquareSums& other) {
    count += other.count;
    sum = RoundTo(type, sum + other.sum);
    squares = RoundTo(type, squares + other.squares);
  }
  double M2() const {
    if (type == DataType::kFloat16 || type == DataType::kBFloat16) {
      const double mean = sum / count;
      return std::max(0.0, squares - mean * mean * count);
    }
    const double mean = RoundTo(type, sum / count);
    const double variance = RoundTo(
        type, RoundTo(type, squares / count) - RoundTo(type, mean * mean));
    return RoundTo(type, std::max(0.0, variance) * count);
  }
};

SquareSums SquareSumsOf(const StepView& view, const ReferenceBatch& batch,
                        size_t c, DataType type) {
  const auto hw = static_cast<size_t>(view.solved.problem.hw);
  const auto channels = static_cast<size_t>(view.solved.problem.channels);
  SquareSums sums = {type};
  for (size_t n = 0; n < static_cast<size_t>(batch.n); ++n) {
    const size_t begin = (n * channels + c) * hw;
    for (size_t i = begin; i < begin + hw; ++i) sums.Add(batch.x[i]);
  }
  return sums;
}

// The running statistic [c] that `entering`, of channel c, makes of `before`.
template <typename Fn>
auto Entered(std::span<const double> before, double weight, Fn entering) {
  return [before, weight, entering](size_t, size_t c) {
    return (1 - weight) * before[c] + weight * entering(c);
  };
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
  // Of each channel: right numbers less wrong ones.
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

ChannelMoments UnbiasedMomentsOf(const ReferenceStatistics& statistics) {
  ChannelMoments result = MomentsOf(statistics);
  const auto count = static_cast<double>(statistics.count);
  for (double& variance : result.variance) {
    variance *= count / std::max(1.0, count - 1);
  }
  return result;
}

ChannelMoments UnweightedMoments(const StepView& view, bool with_empty) {
  std::vector<ChannelMoments> all;
  for (int rank = 0; rank < view.world_size(); ++rank) {
    const ReferenceStatistics own = view.OwnStatisticsOf(rank);
    if (own.count > 0 || with_empty) all.push_back(MomentsOf(own));
  }
  const auto channels = static_cast<size_t>(view.solved.problem.channels);
  ChannelMoments result = {std::vector<double>(channels),
                           std::vector<double>(channels)};
  const double count = std::max(1.0, static_cast<double>(all.size()));
  for (size_t c = 0; c < channels; ++c) {
    for (const ChannelMoments& m : all) result.mean[c] += m.mean[c] / count;
    for (const ChannelMoments& m : all) {
      const double off = m.mean[c] - result.mean[c];
      result.variance[c] += (m.variance[c] + off * off) / count;
    }
  }
  return result;
}

ChannelMoments IncompleteMoments(const StepView& view, bool own_count,
                                 const Takes& takes) {
  const int64_t hw = view.solved.problem.hw;
  const auto channels = static_cast<size_t>(view.solved.problem.channels);
  ChannelMoments all = {std::vector<double>(channels),
                        std::vector<double>(channels)};
  for (size_t c = 0; c < channels; ++c) {
    std::vector<std::array<double, 3>> parts;  // Count, mean, M2 by rank.
    double count = 0;
    for (const ReferenceBatch& batch : view.solved_step().ranks) {
      std::vector<double> taken;
      for (int64_t k = 0; k < batch.n * hw; ++k) {
        if (!takes(batch, k / hw, k % hw)) continue;
        const size_t row = static_cast<size_t>(k / hw) * channels + c;
        taken.push_back(batch.x[row * static_cast<size_t>(hw) +
                                static_cast<size_t>(k % hw)]);
      }
      if (taken.empty()) continue;
      const auto n = static_cast<double>(batch.n * hw);
      const double as = own_count ? static_cast<double>(taken.size()) : n;
      const double mean = std::accumulate(taken.begin(), taken.end(), 0.0) / as;
      double m2 = 0;
      for (const double x : taken) m2 += (x - mean) * (x - mean);
      parts.push_back({n, mean, m2 * n / as});
      count += n;
      all.mean[c] += mean * n;
    }
    all.mean[c] /= std::max(1.0, count);
    for (const auto& [n, mean, m2] : parts) {
      const double off = mean - all.mean[c];
      all.variance[c] += (m2 + n * off * off) / count;
    }
  }
  return all;
}

ChannelMoments SquaredMoments(const StepView& view, DataType type, bool whole) {
  ChannelMoments result = MomentsOf(view.solved_step().statistics);
  std::vector<ReferenceStatistics> own;
  for (int rank = 0; rank < view.world_size(); ++rank) {
    own.push_back(view.OwnStatisticsOf(rank));
  }
  for (size_t c = 0; c < result.mean.size(); ++c) {
    SquareSums all = {type};
    double m2 = 0;
    for (int rank = 0; rank < view.world_size(); ++rank) {
      const SquareSums sums = SquareSumsOf(view, view.BatchOn(rank), c, type);
      if (sums.count == 0) continue;
      all.Add(sums);
      const auto of = static_cast<size_t>(rank);
      const double off = own[of].mean.value[c] - result.mean[c];
      m2 += sums.M2() + sums.count * off * off;
    }
    if (all.count == 0) continue;
    result.variance[c] = (whole ? all.M2() : m2) / all.count;
  }
  return result;
}

std::string CauseOfRunningMean(const StepView& view, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got) {
  const ReferenceStatistics own = view.OwnStatisticsOf(rank);
  const double w = before.weight;
  const auto right = [&](size_t c) {
    return view.solved_step().statistics.mean.value[c];
  };
  return BestFit(
      got, want, {}, 1, view.solved.problem.channels,
      {{"nothing had entered",
        [&](size_t, size_t c) { return before.mean[c]; }},
       {"momentum were inverted", Entered(before.mean, 1 - w, right)},
       {"the batch had entered twice",
        Entered(before.mean, w * (2 - w), right)},
       {"the normalised values had entered",
        Entered(before.mean, w, [](size_t) { return 0.0; })},
       {"this rank's own batch had entered",
        Entered(before.mean, w, [&](size_t c) { return own.mean.value[c]; })}});
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
  const auto enter = [&before](double weight, auto entering) {
    return Entered(before.variance, weight, entering);
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
