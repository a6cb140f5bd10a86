// The causes of what comes forward.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"
#include "syncbn/activations.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {
namespace {

// y of one rank, [n, c, hw], had every rank read its memory in the other
// layout.
std::vector<double> InOtherLayout(const StepView& view, int rank) {
  const SolvedProblem& solved = view.solved;
  const Layout right = view.variant.layout;
  const Layout other = right == Layout::kNchw ? Layout::kNhwc : Layout::kNchw;
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

// Which elements of y, [n, c, hw], hold the bytes that were there before.
std::vector<bool> Unwritten(const StepView& view, int rank) {
  const SolvedProblem& solved = view.solved;
  const SolvedStep& step = view.solved_step();
  const std::string& y = view.Of(rank).y;
  std::string before(y.size(), kUnwritten);
  if (solved.problem.fused == Fused::kInPlace) {
    before = (view.variant.layout == Layout::kNchw
                  ? step.nchw
                  : step.nhwc)[static_cast<size_t>(rank)]
                 .residual;
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

// The mean and variance that all of the channel's y follow, if they do: those
// of a line through its first element and the one furthest from it.
std::string WithFit(const StepView& view, int rank, int64_t channel,
                    std::span<const double> got) {
  const SolvedProblem& solved = view.solved;
  const ReferenceBatch& batch = view.BatchOn(rank);
  const auto c = static_cast<size_t>(channel);
  if (solved.layer.relu || !batch.residual.empty()) return "";
  const ChannelValues values = ValuesOfChannel(
      solved, batch, view.WantOn(rank).y[view.IndexOf(rank)], channel, got);
  // Any two values lie on a line.
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

// y of one rank, by other moments, roots and residuals. Borrows the view.
class OtherOutputs {
 public:
  using Value = std::function<double(size_t i, size_t c)>;

  OtherOutputs(const StepView& view, int rank)
      : layer_(view.solved.layer), batch_(view.BatchOn(rank)) {}

  Value With(const ChannelMoments& m, bool epsilon_outside = false,
             bool scales_residual = false) const {
    return [&layer = layer_, &batch = batch_, m, epsilon_outside,
            scales_residual](size_t i, size_t c) {
      const double weight = layer.weight[c];
      const double residual = batch.residual.empty() ? 0 : batch.residual[i];
      const double deviation = epsilon_outside
                                   ? std::sqrt(m.variance[c]) + layer.epsilon
                                   : std::sqrt(m.variance[c] + layer.epsilon);
      const double y = (batch.x[i] - m.mean[c]) * (1 / deviation) * weight +
                       layer.bias[c] +
                       (scales_residual ? weight : 1) * residual;
      return layer.relu ? std::max(y, 0.0) : y;
    };
  }

 private:
  const ReferenceLayer& layer_;
  const ReferenceBatch& batch_;
};

// Statistics of a part of the values.
std::vector<Alternative> IncompleteAlternatives(const StepView& view,
                                                const OtherOutputs& y) {
  const int64_t hw = view.solved.problem.hw;
  const bool is_last = std::all_of(
      view.solved_step().ranks.begin(), view.solved_step().ranks.end(),
      [](const ReferenceBatch& batch) { return batch.n <= 1; });
  return {{absl::StrCat("the statistics lacked the last value of each row",
                        is_last ? ", and so of every rank" : ""),
           y.With(IncompleteMoments(view, /*own_count=*/false,
                                    [hw](const ReferenceBatch&, int64_t,
                                         int64_t i) { return i < hw - 1; }))},
          {"the statistics lacked the last value of every rank",
           y.With(IncompleteMoments(
               view, /*own_count=*/false,
               [hw](const ReferenceBatch& batch, int64_t n, int64_t i) {
                 return n < batch.n - 1 || i < hw - 1;
               }))},
          {"the first half of each rank's samples stood for all",
           y.With(IncompleteMoments(view, /*own_count=*/true,
                                    [](const ReferenceBatch& batch, int64_t n,
                                       int64_t) { return n < batch.n / 2; }))}};
}

// Variances whose digits cancelled. Bounds grow with the inverse deviation.
std::vector<Alternative> SquareAlternatives(const StepView& view,
                                            const OtherOutputs& y) {
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
          {absl::StrCat("the variance were E[x^2] - E[x]^2, ", name), y.With(m),
           [m, right, epsilon](size_t c) {
             return std::max(1.0,
                             1 / std::sqrt(m.variance[c] + epsilon) / right[c]);
           }});
    }
  }
  return alternatives;
}

// What y may have been computed from.
std::vector<Alternative> OutputAlternatives(const StepView& view, int rank) {
  const SolvedStep& of = view.solved_step();
  const OtherOutputs y(view, rank);
  const ChannelMoments right = MomentsOf(view.StatisticsOn(rank));
  std::vector<Alternative> alternatives = {
      {of.training ? "this rank's own batch were the whole"
                   : "this rank's own batch were used in evaluation",
       y.With(MomentsOf(view.OwnStatisticsOf(rank)))},
      {"the ranks' means had equal weights",
       y.With(UnweightedMoments(view, false))},
      {"an empty rank counted as one", y.With(UnweightedMoments(view, true))},
      {"epsilon stood outside the root",
       y.With(right, /*epsilon_outside=*/true)},
      {"the residual were scaled by the weight",
       y.With(right, /*epsilon_outside=*/false, /*scales_residual=*/true)},
      {"the variance were divided by n - 1",
       y.With(UnbiasedMomentsOf(view.StatisticsOn(rank)))},
      {"it was 0", [](size_t, size_t) { return 0.0; }}};
  if (of.training) {
    alternatives.push_back({"the running statistics were used",
                            y.With({of.running_mean, of.running_variance})});
    for (const auto& some :
         {IncompleteAlternatives(view, y), SquareAlternatives(view, y)}) {
      alternatives.insert(alternatives.end(), some.begin(), some.end());
    }
  } else {
    alternatives.push_back(
        {"the batch of all ranks were used",
         y.With(MomentsOf(StatisticsOf(view.solved.layer, of.ranks,
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
  const std::vector<double> misread = InOtherLayout(view, rank);
  std::vector<Alternative> alternatives = OutputAlternatives(view, rank);
  alternatives.push_back({"the memory had the other layout",
                          [&](size_t i, size_t) { return misread[i]; }});
  const std::string cause = BestFit(got, want, view.solved.precision,
                                    problem.hw, problem.channels, alternatives);
  if (!cause.empty()) return cause;
  return WithFit(view, rank, channel, got);
}

}  // namespace lockstep
