// Finds the cause of a wrong y.
#include "conformance/syncbn/output_causes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/causes.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_view.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

// Returns y of one rank, [n, c, hw], as if every rank read its memory in
// another layout.
std::vector<double> InLayout(const StepView& view, int rank, Layout other) {
  const SolvedProblem& solved = view.solved;
  const Layout right = view.variant.layout;
  std::vector<ReferenceBatch> misread = view.solved_step().ranks;
  const auto move = [&](size_t of, Layout from, Layout to,
                        std::vector<double>& values) {
    const int at = static_cast<int>(of);
    values = FromLayout(solved.ShapeOf(view.step, at, to),
                        ToLayout(solved.ShapeOf(view.step, at, from), values));
  };
  for (size_t i = 0; i < misread.size(); ++i) {
    move(i, right, other, misread[i].x);
    if (misread[i].residual.empty()) continue;
    move(i, right, other, misread[i].residual);
  }
  const auto at = static_cast<size_t>(rank);
  std::vector<double> y =
      ReferenceBeforeRelu(solved.layer,
                          StatisticsOf(solved.layer, misread, solved.precision),
                          misread[at], solved.precision)
          .value;
  for (double& value : y) {
    if (solved.layer.relu) value = std::max(value, 0.0);
  }
  move(at, other, right, y);
  return y;
}

// One channel's elements on a rank.
struct ChannelValues {
  std::vector<double> x;
  std::vector<double> got;
  Bounded want{0};
};

ChannelValues ValuesOfChannel(const SolvedProblem& solved,
                              const ReferenceBatch& batch, const Bounded& want,
                              int64_t channel, std::span<const double> got) {
  ChannelValues values;
  for (int64_t n = 0; n < batch.n; ++n) {
    const int64_t begin =
        (n * solved.problem.channels + channel) * solved.problem.hw;
    for (int64_t at = begin; at < begin + solved.problem.hw; ++at) {
      const auto i = static_cast<size_t>(at);
      values.x.push_back(batch.x[i]);
      values.got.push_back(got[i]);
      values.want.value.push_back(want.value[i]);
      values.want.bound.push_back(want.bound[i]);
    }
  }
  return values;
}

// Returns which elements of y, [n, c, hw], hold the bytes from before the call.
std::vector<bool> Unwritten(const StepView& view, int rank) {
  const SolvedProblem& solved = view.solved;
  const SolvedStep& step = view.solved_step();
  const std::string& y = view.Of(rank).y;
  std::string before(y.size(), kUnwritten);
  if (solved.problem.fused == Fused::kInPlace) {
    before = step.InputsOf(view.variant.layout, rank).residual;
  }
  const auto size = static_cast<size_t>(SizeOf(solved.problem.type));
  std::vector<double> is_unwritten;
  for (size_t at = 0; at < y.size(); at += size) {
    is_unwritten.push_back(y.compare(at, size, before, at, size) == 0 ? 1 : 0);
  }
  const std::vector<double> nchw = FromLayout(
      solved.ShapeOf(view.step, rank, view.variant.layout), is_unwritten);
  return {nchw.begin(), nchw.end()};
}

// Returns the mean and variance that explain all of the channel's y, if there
// are any. They follow from a line through its first element and the element
// whose x is furthest from the first.
std::string FitLine(const StepView& view, int rank, int64_t channel,
                    std::span<const double> got) {
  const SolvedProblem& solved = view.solved;
  const ReferenceBatch& batch = view.BatchOn(rank);
  const auto c = static_cast<size_t>(channel);
  if (solved.layer.relu || !batch.residual.empty()) return "";
  const ChannelValues values = ValuesOfChannel(
      solved, batch, view.WantOn(rank).y[view.IndexOf(rank)], channel, got);
  // With two distinct values, a line always fits.
  if (std::set<double>(values.x.begin(), values.x.end()).size() < 3) return "";
  size_t last = 0;
  for (size_t i = 0; i < values.x.size(); ++i) {
    const double off = std::fabs(values.x[i] - values.x[0]);
    if (off > std::fabs(values.x[last] - values.x[0])) last = i;
  }
  const double slope =
      (values.got[last] - values.got[0]) / (values.x[last] - values.x[0]);
  const double inverse = slope / solved.layer.weight[c];
  if (!(inverse > 0)) return "";
  const double mean =
      values.x[0] - (values.got[0] - solved.layer.bias[c]) / slope;
  const double variance = 1 / (inverse * inverse) - solved.layer.epsilon;
  const double right = view.StatisticsOn(rank).inverse_deviation.value[c];
  return BestFit(
      values.got, values.want, solved.precision, 1, 1,
      {{absl::StrCat("the mean were ", mean, " and the variance ", variance),
        [&](size_t i, size_t) {
          return values.got[0] + slope * (values.x[i] - values.x[0]);
        },
        [&](size_t) { return std::max(1.0, inverse / right); }}});
}

// Sums of values and of their squares, with each addition rounded.
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

// Returns the moments with the variance divided by n - 1.
ChannelMoments UnbiasedMomentsOf(const ReferenceStatistics& statistics) {
  ChannelMoments result = MomentsOf(statistics);
  const auto count = static_cast<double>(statistics.count);
  for (double& variance : result.variance) {
    variance *= count / std::max(1.0, count - 1);
  }
  return result;
}

// Returns the ranks' moments, averaged without weights. `with_empty` also
// counts an empty rank, whose moments are zero.
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

// Whether the statistics take value i of sample n.
using Takes =
    std::function<bool(const ReferenceBatch& batch, int64_t n, int64_t i)>;

// Returns the moments as if each rank had taken only some of its values. The
// sums are divided by the right count, so that the left-out values count as
// zeros in the mean. With `own_count` they are divided by the number of taken
// values.
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

// Returns the right means, with variances E[x^2] - E[x]^2, or 0 if that is
// negative. The sums are rounded to `type` after each value, in the order of
// samples and pixels. In float32 and float64 all later steps are rounded too;
// in 16 bits only the sums are.
//
// `whole`: the ranks' sums are added in `type`. Otherwise each rank computes
// its variance this way, and the merge is correct.
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

// Returns y of one rank with other moments, epsilon or residual. Borrows the
// view.
std::function<double(size_t i, size_t c)> OutputBy(
    const StepView& view, int rank, const ChannelMoments& m,
    bool epsilon_outside = false, bool scales_residual = false) {
  return [&layer = view.solved.layer, &batch = view.BatchOn(rank), m,
          epsilon_outside, scales_residual](size_t i, size_t c) {
    const double weight = layer.weight[c];
    const double residual = batch.residual.empty() ? 0 : batch.residual[i];
    const double deviation = epsilon_outside
                                 ? std::sqrt(m.variance[c]) + layer.epsilon
                                 : std::sqrt(m.variance[c] + layer.epsilon);
    const double y = (batch.x[i] - m.mean[c]) * (1 / deviation) * weight +
                     layer.bias[c] + (scales_residual ? weight : 1) * residual;
    return layer.relu ? std::max(y, 0.0) : y;
  };
}

// Returns the alternatives whose statistics leave some values out.
std::vector<Alternative> IncompleteAlternatives(const StepView& view,
                                                int rank) {
  const int64_t hw = view.solved.problem.hw;
  const bool is_last = std::all_of(
      view.solved_step().ranks.begin(), view.solved_step().ranks.end(),
      [](const ReferenceBatch& batch) { return batch.n <= 1; });
  return {
      {absl::StrCat("the statistics lacked the last value of each row",
                    is_last ? ", and so of every rank" : ""),
       OutputBy(view, rank,
                IncompleteMoments(view, /*own_count=*/false,
                                  [hw](const ReferenceBatch&, int64_t,
                                       int64_t i) { return i < hw - 1; }))},
      {"the statistics lacked the last value of every rank",
       OutputBy(view, rank,
                IncompleteMoments(
                    view, /*own_count=*/false,
                    [hw](const ReferenceBatch& batch, int64_t n, int64_t i) {
                      return n < batch.n - 1 || i < hw - 1;
                    }))},
      {"the first half of each rank's samples stood for all",
       OutputBy(view, rank,
                IncompleteMoments(view, /*own_count=*/true,
                                  [](const ReferenceBatch& batch, int64_t n,
                                     int64_t) { return n < batch.n / 2; }))}};
}

// Returns the alternatives whose variance loses digits by cancellation. Bounds
// grow with the inverse deviation.
std::vector<Alternative> SquareAlternatives(const StepView& view, int rank) {
  std::vector<std::pair<DataType, const char*>> types = {
      {DataType::kFloat32, "in float32"}};
  if (view.solved.problem.type != DataType::kFloat32) {
    types.emplace_back(view.solved.problem.type, "in the type of x");
  }
  const std::vector<double>& right =
      view.solved_step().statistics.inverse_deviation.value;
  const double epsilon = view.solved.layer.epsilon;
  std::vector<Alternative> alternatives;
  for (const auto& [type, name] : types) {
    for (const bool whole : {false, true}) {
      const ChannelMoments m = SquaredMoments(view, type, whole);
      alternatives.push_back(
          {absl::StrCat("the variance were E[x^2] - E[x]^2, ", name),
           OutputBy(view, rank, m), [m, right, epsilon](size_t c) {
             return std::max(1.0,
                             1 / std::sqrt(m.variance[c] + epsilon) / right[c]);
           }});
    }
  }
  return alternatives;
}

// Returns the wrong computations that y may come from.
std::vector<Alternative> OutputAlternatives(const StepView& view, int rank) {
  const SolvedStep& of = view.solved_step();
  const ChannelMoments right = MomentsOf(view.StatisticsOn(rank));
  std::vector<Alternative> alternatives = {
      {of.training ? "this rank's own batch were the whole"
                   : "this rank's own batch were used in evaluation",
       OutputBy(view, rank, MomentsOf(view.OwnStatisticsOf(rank)))},
      {"the ranks' means had equal weights",
       OutputBy(view, rank, UnweightedMoments(view, false))},
      {"an empty rank counted as one",
       OutputBy(view, rank, UnweightedMoments(view, true))},
      {"epsilon stood outside the root",
       OutputBy(view, rank, right, /*epsilon_outside=*/true)},
      {"the residual were scaled by the weight",
       OutputBy(view, rank, right, /*epsilon_outside=*/false,
                /*scales_residual=*/true)},
      {"the variance were divided by n - 1",
       OutputBy(view, rank, UnbiasedMomentsOf(view.StatisticsOn(rank)))},
      {"it was 0", [](size_t, size_t) { return 0.0; }}};
  if (of.training) {
    alternatives.push_back(
        {"the running statistics were used",
         OutputBy(view, rank, {of.running_mean, of.running_variance})});
    for (const auto& some :
         {IncompleteAlternatives(view, rank), SquareAlternatives(view, rank)}) {
      alternatives.insert(alternatives.end(), some.begin(), some.end());
    }
  } else {
    alternatives.push_back(
        {"the batch of all ranks were used",
         OutputBy(view, rank,
                  MomentsOf(StatisticsOf(view.solved.layer, of.ranks,
                                         view.solved.precision)))});
  }
  return alternatives;
}

}  // namespace

std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got) {
  const BatchNormProblem& problem = view.solved.problem;
  const Bounded& want = view.WantOn(rank).y[view.IndexOf(rank)];
  const std::string unwritten = NotWritten(got, want, Unwritten(view, rank));
  if (!unwritten.empty()) return unwritten;
  const std::string first =
      FirstChannelsOnly(got, want, problem.hw, problem.channels, channel);
  if (!first.empty()) return first;
  std::vector<Alternative> alternatives = OutputAlternatives(view, rank);
  for (const Layout other : LayoutsOf(problem.channels)) {
    if (other == view.variant.layout) continue;
    const bool blocked = view.variant.layout == Layout::kNchw16c;
    alternatives.push_back(
        {absl::StrCat(blocked ? "blocks of channels" : "the memory",
                      " had another layout, ", Name(other)),
         [misread = InLayout(view, rank, other)](size_t i, size_t) {
           return misread[i];
         }});
  }
  const std::string cause = BestFit(got, want, view.solved.precision,
                                    problem.hw, problem.channels, alternatives);
  if (!cause.empty()) return cause;
  return FitLine(view, rank, channel, got);
}

}  // namespace lockstep::conformance
