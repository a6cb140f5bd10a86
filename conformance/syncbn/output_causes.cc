// What known mistakes would have given forward.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/data_type.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/batch_norm_values.h"
#include "conformance/syncbn/best_fit.h"
#include "conformance/syncbn/step_view.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

// Mean and variance that each channel may have been normalised with.
struct Moments {
  std::vector<double> mean;
  std::vector<double> variance;
};

Moments MomentsOf(const ReferenceStatistics& statistics) {
  Moments result = {statistics.mean.value, statistics.m2.value};
  const double count = std::max(1.0, static_cast<double>(statistics.count));
  for (double& variance : result.variance) variance /= count;
  return result;
}

// Divided by n - 1.
Moments UnbiasedMomentsOf(const ReferenceStatistics& statistics) {
  Moments result = MomentsOf(statistics);
  const auto count = static_cast<double>(statistics.count);
  for (double& variance : result.variance) {
    variance *= count / std::max(1.0, count - 1);
  }
  return result;
}

// The ranks' moments, averaged without weights. An empty rank, which has zeros,
// may count as any other.
Moments Unweighted(const StepView& view, bool with_empty) {
  std::vector<Moments> all;
  for (int rank = 0; rank < view.world_size(); ++rank) {
    const ReferenceStatistics own = view.OwnStatisticsOf(rank);
    if (own.count > 0 || with_empty) all.push_back(MomentsOf(own));
  }
  const auto channels = static_cast<size_t>(view.exam.problem.channels);
  Moments result = {std::vector<double>(channels),
                    std::vector<double>(channels)};
  const double count = std::max(1.0, static_cast<double>(all.size()));
  for (size_t c = 0; c < channels; ++c) {
    for (const Moments& m : all) result.mean[c] += m.mean[c] / count;
    for (const Moments& m : all) {
      const double off = m.mean[c] - result.mean[c];
      result.variance[c] += (m.variance[c] + off * off) / count;
    }
  }
  return result;
}

// Which values of a rank's batch were taken.
using Takes =
    std::function<bool(const ReferenceBatch& batch, int64_t n, int64_t i)>;

// All ranks' moments had each taken some of its values for all: with the right
// count, so that the others seem to be zeros in the mean, or with theirs.
Moments Incomplete(const StepView& view, bool own_count, const Takes& takes) {
  const int64_t hw = view.exam.problem.hw;
  const auto channels = static_cast<size_t>(view.exam.problem.channels);
  Moments all = {std::vector<double>(channels), std::vector<double>(channels)};
  for (size_t c = 0; c < channels; ++c) {
    std::vector<std::array<double, 3>> parts;  // Count, mean, M2 by rank.
    double count = 0;
    for (const ReferenceBatch& batch : view.exam_step().ranks) {
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

// y of one rank, [n, c, hw], had every rank read its memory in the other
// layout.
std::vector<double> InOtherLayout(const StepView& view, int rank) {
  const BatchNormExam& exam = view.exam;
  const Layout right = view.variant.layout;
  const Layout other = right == Layout::kNchw ? Layout::kNhwc : Layout::kNchw;
  std::vector<ReferenceBatch> misread = view.exam_step().ranks;
  const auto move = [&](size_t of, Layout from, Layout to,
                        std::vector<double>& values) {
    const int at = static_cast<int>(of);
    values = FromLayout(exam.ShapeOf(view.step, at, to),
                        ToLayout(exam.ShapeOf(view.step, at, from), values));
  };
  for (size_t i = 0; i < misread.size(); ++i) {
    move(i, right, other, misread[i].x);
    if (misread[i].residual.empty()) continue;
    move(i, right, other, misread[i].residual);
  }
  const auto at = static_cast<size_t>(rank);
  std::vector<double> y =
      ReferenceBeforeRelu(exam.layer,
                          StatisticsOf(exam.layer, misread, exam.precision),
                          misread[at], exam.precision)
          .value;
  for (double& value : y) {
    if (exam.layer.relu) value = std::max(value, 0.0);
  }
  move(at, other, right, y);
  return y;
}

// Whether the channel's variance is off by no more than rounding may lose that
// squares the values, adds them up and takes the mean's square away, in the
// type of x or in float32; and by more than a thousandth.
bool Cancelled(const StepView& view, int rank, size_t c, double variance) {
  const Moments right = MomentsOf(view.StatisticsOn(rank));
  const double unit =
      view.exam.problem.type == DataType::kBFloat16 ? 0x1p-8 : 0x1p-24;
  const double square = right.variance[c] + right.mean[c] * right.mean[c];
  const double most =
      unit * static_cast<double>(view.StatisticsOn(rank).count + 2) * square;
  const double off = std::fabs(variance - right.variance[c]);
  return off > 1e-3 * right.variance[c] && off <= most;
}

// The mean and variance that the channel's y follow, where they follow any:
// a line through its first element and the one furthest from it.
std::string WithFit(const StepView& view, int rank, int64_t channel,
                    std::span<const double> got) {
  const BatchNormExam& exam = view.exam;
  const ReferenceBatch& batch = view.BatchOn(rank);
  const auto c = static_cast<size_t>(channel);
  if (exam.layer.relu || !batch.residual.empty() || batch.n == 0) return "";
  const auto first = static_cast<size_t>(channel * exam.problem.hw);
  size_t last = first;
  for (int64_t n = 0; n < batch.n; ++n) {
    for (int64_t i = 0; i < exam.problem.hw; ++i) {
      const auto at = static_cast<size_t>(
          (n * exam.problem.channels + channel) * exam.problem.hw + i);
      const double off = std::fabs(batch.x[at] - batch.x[first]);
      if (off > std::fabs(batch.x[last] - batch.x[first])) last = at;
    }
  }
  const double slope =
      (got[last] - got[first]) / (batch.x[last] - batch.x[first]);
  const double inverse = slope / exam.layer.weight[c];
  if (!(inverse > 0)) return "";
  const double mean =
      batch.x[first] - (got[first] - exam.layer.bias[c]) / slope;
  const double variance = 1 / (inverse * inverse) - exam.layer.epsilon;
  return absl::StrCat(
      ", as if the mean were ", mean, " and the variance ", variance,
      Cancelled(view, rank, c, variance) ? ", which E[x^2] - E[x]^2 may give"
                                         : "");
}

// y of one rank, by other moments, roots and residuals. Borrows the view.
class OtherOutputs {
 public:
  using Value = std::function<double(size_t i, size_t c)>;

  OtherOutputs(const StepView& view, int rank)
      : layer_(view.exam.layer), batch_(view.BatchOn(rank)) {}

  Value With(const Moments& m) const {
    return With(m, RightInverse(), /*scales_residual=*/false);
  }
  Value WithScaledResidual(const Moments& m) const {
    return With(m, RightInverse(), /*scales_residual=*/true);
  }
  Value WithEpsilonOutside(const Moments& m) const {
    const double epsilon = layer_.epsilon;
    return With(
        m, [epsilon](double v) { return 1 / (std::sqrt(v) + epsilon); },
        /*scales_residual=*/false);
  }

 private:
  using Inverse = std::function<double(double variance)>;

  Inverse RightInverse() const {
    const double epsilon = layer_.epsilon;
    return [epsilon](double v) { return 1 / std::sqrt(v + epsilon); };
  }
  Value With(const Moments& m, Inverse inverse, bool scales_residual) const {
    return [&layer = layer_, &batch = batch_, m, inverse, scales_residual](
               size_t i, size_t c) {
      const double weight = layer.weight[c];
      const double residual = batch.residual.empty() ? 0 : batch.residual[i];
      const double y =
          (batch.x[i] - m.mean[c]) * inverse(m.variance[c]) * weight +
          layer.bias[c] + (scales_residual ? weight : 1) * residual;
      return layer.relu ? std::max(y, 0.0) : y;
    };
  }

  const ReferenceLayer& layer_;
  const ReferenceBatch& batch_;
};

// Statistics of a part of the values.
std::vector<Mistake> IncompleteMistakes(const StepView& view,
                                        const OtherOutputs& y) {
  const int64_t hw = view.exam.problem.hw;
  return {{"the statistics lacked the last value of each row",
           y.With(Incomplete(view, /*own_count=*/false,
                             [hw](const ReferenceBatch&, int64_t, int64_t i) {
                               return i < hw - 1;
                             }))},
          {"the statistics lacked the last value of each rank",
           y.With(Incomplete(
               view, /*own_count=*/false,
               [hw](const ReferenceBatch& batch, int64_t n, int64_t i) {
                 return n < batch.n - 1 || i < hw - 1;
               }))},
          {"the first half of each rank's samples stood for all",
           y.With(Incomplete(view, /*own_count=*/true,
                             [](const ReferenceBatch& batch, int64_t n,
                                int64_t) { return n < batch.n / 2; }))}};
}

// What y may have been computed from.
std::vector<Mistake> OutputMistakes(const StepView& view, int rank) {
  const ExamStep& of = view.exam_step();
  const OtherOutputs y(view, rank);
  const Moments right = MomentsOf(view.StatisticsOn(rank));
  std::vector<Mistake> mistakes = {
      {"this rank's own batch were the whole",
       y.With(MomentsOf(view.OwnStatisticsOf(rank)))},
      {"the ranks' means had equal weights", y.With(Unweighted(view, false))},
      {"an empty rank counted as one", y.With(Unweighted(view, true))},
      {"epsilon stood outside the root", y.WithEpsilonOutside(right)},
      {"the residual were scaled by the weight", y.WithScaledResidual(right)},
      {"the variance were divided by n - 1",
       y.With(UnbiasedMomentsOf(view.StatisticsOn(rank)))},
      {"it was 0", [](size_t, size_t) { return 0.0; }}};
  if (of.training) {
    mistakes.push_back({"the running statistics were used",
                        y.With({of.running_mean, of.running_variance})});
    for (Mistake& mistake : IncompleteMistakes(view, y)) {
      mistakes.push_back(std::move(mistake));
    }
  } else {
    mistakes.push_back({"the batch of all ranks were used",
                        y.With(MomentsOf(StatisticsOf(view.exam.layer, of.ranks,
                                                      view.exam.precision)))});
  }
  return mistakes;
}

}  // namespace

std::string CauseOfOutput(const StepView& view, int rank, int64_t channel,
                          std::span<const double> got) {
  const BatchNormProblem& problem = view.exam.problem;
  const Bounded& want = view.WantOn(rank).y[view.IndexOf(rank)];
  const std::string unwritten = NotWritten(got, want);
  if (!unwritten.empty()) return unwritten;
  const std::string first =
      FirstChannelsOnly(got, want, problem.hw, problem.channels, channel);
  if (!first.empty()) return first;
  const std::vector<double> misread = InOtherLayout(view, rank);
  std::vector<Mistake> mistakes = OutputMistakes(view, rank);
  mistakes.push_back({"the memory had the other layout",
                      [&](size_t i, size_t) { return misread[i]; }});
  const std::string cause = BestFit(got, want, view.exam.precision, problem.hw,
                                    problem.channels, mistakes);
  if (!cause.empty()) return cause;
  return WithFit(view, rank, channel, got);
}

}  // namespace lockstep
