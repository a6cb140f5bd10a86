// Computes what known mistakes would have given.
#include "conformance/syncbn/batch_norm_causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/batch_norm_values.h"
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

ReferenceStatistics OwnStatistics(const BatchNormExam& exam, int step,
                                  int rank) {
  const ReferenceBatch& batch =
      exam.steps[static_cast<size_t>(step)].ranks[static_cast<size_t>(rank)];
  return StatisticsOf(exam.layer, {&batch, 1}, exam.precision);
}

// The ranks' moments, averaged without weights. An empty rank, which has zeros,
// may count as any other.
Moments Unweighted(const BatchNormExam& exam, int step, bool with_empty) {
  std::vector<Moments> all;
  for (int rank = 0; rank < exam.problem.world_size; ++rank) {
    const ReferenceStatistics own = OwnStatistics(exam, step, rank);
    if (own.count > 0 || with_empty) all.push_back(MomentsOf(own));
  }
  const auto channels = static_cast<size_t>(exam.problem.channels);
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

// A mistake, and what it makes of element i of channel c.
struct Mistake {
  std::string name;
  std::function<double(size_t i, size_t c)> value;
};

// The mistake that comes closest to all numbers, if it explains them: each is
// off by no more than kSlack times its bound, which may be of a smaller number.
std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Mistake>& mistakes) {
  constexpr double kSlack = 4;
  double least = kSlack;
  std::string name;
  for (const Mistake& mistake : mistakes) {
    double most = 0;
    for (size_t i = 0; i < got.size() && most < least; ++i) {
      const auto c =
          static_cast<size_t>(static_cast<int64_t>(i) / hw % channels);
      const double value = mistake.value(i, c);
      const double bound =
          want.bound[i] + precision.output_unit * std::fabs(value);
      const double off = std::fabs(got[i] - value);
      const double times = off == 0 ? 0 : off / bound;
      most = times < kSlack ? std::max(most, times) : kSlack;
    }
    if (most < least) {
      least = most;
      name = mistake.name;
    }
  }
  return name.empty() ? "" : absl::StrCat(", as if ", name);
}

const Bounded& WantedOf(const BatchNormExam& exam,
                        const BatchNormVariant& variant, int step, int rank,
                        std::vector<Bounded> ReferenceResult::*field) {
  const ExamStep& of = exam.steps[static_cast<size_t>(step)];
  const auto i = static_cast<size_t>(rank);
  const bool own = !of.training && variant.tracking == Tracking::kNone;
  return own ? (of.own_want[i].*field)[0] : (of.want.*field)[i];
}

// The statistics that a step should use on a rank.
const ReferenceStatistics& RightStatistics(const BatchNormExam& exam,
                                           const BatchNormVariant& variant,
                                           int step, int rank) {
  const ExamStep& of = exam.steps[static_cast<size_t>(step)];
  const bool own = !of.training && variant.tracking == Tracking::kNone;
  return own ? of.own_statistics[static_cast<size_t>(rank)] : of.statistics;
}

// "the channels from 64 on were left out", if all others are right.
std::string FirstChannelsOnly(const BatchNormExam& exam, int64_t channel,
                              std::span<const double> got,
                              const Bounded& want) {
  constexpr int64_t kChannels = 64;
  if (channel < kChannels) return "";
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t c =
        static_cast<int64_t>(i) / exam.problem.hw % exam.problem.channels;
    const double off = std::fabs(got[i] - want.value[i]);
    if (c < kChannels && !(off <= want.bound[i])) return "";
  }
  return ", as if only the first 64 channels were computed";
}

// y of one rank, [n, c, hw], had every rank read its memory in the other
// layout.
std::vector<double> InOtherLayout(const BatchNormExam& exam,
                                  const BatchNormVariant& variant, int step,
                                  int rank) {
  const Layout other =
      variant.layout == Layout::kNchw ? Layout::kNhwc : Layout::kNchw;
  std::vector<ReferenceBatch> misread =
      exam.steps[static_cast<size_t>(step)].ranks;
  const auto move = [&](size_t of, Layout from, Layout to,
                        std::vector<double>& values) {
    const int at = static_cast<int>(of);
    values = FromLayout(exam.ShapeOf(step, at, to),
                        ToLayout(exam.ShapeOf(step, at, from), values));
  };
  for (size_t i = 0; i < misread.size(); ++i) {
    move(i, variant.layout, other, misread[i].x);
    if (!misread[i].residual.empty()) {
      move(i, variant.layout, other, misread[i].residual);
    }
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
  move(at, other, variant.layout, y);
  return y;
}

// The mean and variance that the channel's y follow, where they follow any:
// a line through its first element and the one furthest from it.
std::string WithFit(const BatchNormExam& exam, const ReferenceBatch& batch,
                    int64_t channel, std::span<const double> got) {
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
  return absl::StrCat(", as if the mean were ", mean, " and the variance ",
                      1 / (inverse * inverse) - exam.layer.epsilon);
}

// What y may have been computed from.
std::vector<Mistake> OutputMistakes(const BatchNormExam& exam,
                                    const BatchNormVariant& variant, int step,
                                    int rank) {
  const ExamStep& of = exam.steps[static_cast<size_t>(step)];
  const ReferenceBatch& batch = of.ranks[static_cast<size_t>(rank)];
  const double epsilon = exam.layer.epsilon;
  const auto with = [&exam, &batch](const Moments& m, auto inverse,
                                    bool scales_residual) {
    return [=, &exam, &batch](size_t i, size_t c) {
      const double weight = exam.layer.weight[c];
      const double residual = batch.residual.empty() ? 0 : batch.residual[i];
      const double y =
          (batch.x[i] - m.mean[c]) * inverse(m.variance[c]) * weight +
          exam.layer.bias[c] + (scales_residual ? weight : 1) * residual;
      return exam.layer.relu ? std::max(y, 0.0) : y;
    };
  };
  const auto right_inverse = [=](double v) {
    return 1 / std::sqrt(v + epsilon);
  };
  const auto by = [&](const Moments& m) {
    return with(m, right_inverse, false);
  };
  const ReferenceStatistics& right = RightStatistics(exam, variant, step, rank);
  const Moments m = MomentsOf(right);
  Moments unbiased = m;
  const auto count = static_cast<double>(right.count);
  for (double& variance : unbiased.variance) {
    variance *= count / std::max(1.0, count - 1);
  }
  std::vector<Mistake> mistakes = {
      {"this rank's own batch were the whole",
       by(MomentsOf(OwnStatistics(exam, step, rank)))},
      {"the ranks' means had equal weights", by(Unweighted(exam, step, false))},
      {"an empty rank counted as one", by(Unweighted(exam, step, true))},
      {"epsilon stood outside the root",
       with(
           m, [=](double v) { return 1 / (std::sqrt(v) + epsilon); }, false)},
      {"the residual were scaled by the weight", with(m, right_inverse, true)},
      {"the variance were divided by n - 1", by(unbiased)}};
  if (of.training) {
    mistakes.push_back({"the running statistics were used",
                        by({of.running_mean, of.running_variance})});
  } else {
    mistakes.push_back(
        {"the batch of all ranks were used",
         by(MomentsOf(StatisticsOf(exam.layer, of.ranks, exam.precision)))});
  }
  return mistakes;
}

}  // namespace

std::string CauseOfOutput(const BatchNormExam& exam,
                          const BatchNormVariant& variant, int step, int rank,
                          int64_t channel, std::span<const double> got) {
  const ExamStep& of = exam.steps[static_cast<size_t>(step)];
  const ReferenceBatch& batch = of.ranks[static_cast<size_t>(rank)];
  const Bounded& want =
      WantedOf(exam, variant, step, rank, &ReferenceResult::y);
  const std::string first = FirstChannelsOnly(exam, channel, got, want);
  if (!first.empty()) return first;
  const std::vector<double> misread = InOtherLayout(exam, variant, step, rank);
  std::vector<Mistake> mistakes = OutputMistakes(exam, variant, step, rank);
  mistakes.push_back({"the memory had the other layout",
                      [&](size_t i, size_t) { return misread[i]; }});
  mistakes.push_back({"it was 0", [](size_t, size_t) { return 0.0; }});
  const std::string cause = BestFit(got, want, exam.precision, exam.problem.hw,
                                    exam.problem.channels, mistakes);
  return !cause.empty() ? cause : WithFit(exam, batch, channel, got);
}

std::string CauseOfInputGradient(const BatchNormExam& exam,
                                 const BatchNormVariant& variant, int step,
                                 int rank, int64_t channel,
                                 std::span<const double> got) {
  const ExamStep& of = exam.steps[static_cast<size_t>(step)];
  const auto at = static_cast<size_t>(rank);
  const ReferenceBatch& batch = of.ranks[at];
  const Bounded& want =
      WantedOf(exam, variant, step, rank, &ReferenceResult::dx);
  const std::string first = FirstChannelsOnly(exam, channel, got, want);
  if (!first.empty()) return first;
  const ReferenceStatistics& right = RightStatistics(exam, variant, step, rank);
  const bool own = !of.training && variant.tracking == Tracking::kNone;
  const ReferenceResult& result = own ? of.own_want[at] : of.want;
  const std::vector<double>& g = result.dresidual[own ? 0 : at];
  const ReferenceResult alone =
      ReferenceOf(exam.layer, right, {&batch, 1}, exam.precision);
  const double n = std::max(1.0, static_cast<double>(right.count));
  const double own_n =
      std::max(1.0, static_cast<double>(batch.n * exam.problem.hw));
  // With sums of the ranks in `sums`, times s0 and s1, of `upstream`.
  const auto with = [&](const ReferenceResult& sums, double s0, double s1,
                        const std::vector<double>& upstream) {
    return [&, s0, s1](size_t i, size_t c) {
      const double r = right.inverse_deviation.value[c];
      const double z = (batch.x[i] - right.mean.value[c]) * r;
      return exam.layer.weight[c] * r *
             (upstream[i] - s0 * sums.dbias.value[c] -
              z * s1 * sums.dweight.value[c]);
    };
  };
  return BestFit(
      got, want, exam.precision, exam.problem.hw, exam.problem.channels,
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

std::string CauseOfRunningMean(const BatchNormExam& exam, int step, int rank,
                               const RunningBefore& before, const Bounded& want,
                               std::span<const double> got) {
  const ReferenceStatistics& batch =
      exam.steps[static_cast<size_t>(step)].statistics;
  const ReferenceStatistics own = OwnStatistics(exam, step, rank);
  const double w = before.weight;
  const auto enter = [&](double old, double weight, double value) {
    return (1 - weight) * old + weight * value;
  };
  return BestFit(
      got, want, {}, 1, exam.problem.channels,
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

std::string CauseOfRunningVariance(const BatchNormExam& exam,
                                   const BatchNormVariant& variant, int step,
                                   int rank, const RunningBefore& before,
                                   const Bounded& want,
                                   std::span<const double> got) {
  const ReferenceStatistics& batch =
      exam.steps[static_cast<size_t>(step)].statistics;
  const ReferenceStatistics own = OwnStatistics(exam, step, rank);
  const double n = static_cast<double>(batch.count);
  const bool unbiased = variant.semantics.unbiased_running_variance;
  const auto enter = [&](double weight, double divisor) {
    return [&, weight, divisor](size_t, size_t c) {
      return (1 - weight) * before.variance[c] +
             weight * batch.m2.value[c] / divisor;
    };
  };
  const double right = unbiased ? n - 1 : n;
  const double w = before.weight;
  return BestFit(
      got, want, {}, 1, exam.problem.channels,
      {{"nothing had entered",
        [&](size_t, size_t c) { return before.variance[c]; }},
       {unbiased ? "the variance were biased" : "the variance were unbiased",
        enter(w, unbiased ? n : n - 1)},
       {"this rank's own count were the global one",
        [&](size_t, size_t c) {
          const double k = static_cast<double>(own.count);
          return enter(w, unbiased ? n * (k - 1) / k : n)(c, c);
        }},
       {"momentum were inverted", enter(1 - w, right)},
       {"the batch had entered twice",
        [&](size_t, size_t c) {
          return (1 - w) * enter(w, right)(c, c) +
                 w * batch.m2.value[c] / right;
        }},
       {"this rank's own batch had entered", [&](size_t, size_t c) {
          const double k = static_cast<double>(own.count);
          return (1 - w) * before.variance[c] +
                 w * own.m2.value[c] / (unbiased ? k - 1 : k);
        }}});
}

std::string CauseOfParameterGradient(const BatchNormExam& exam,
                                     const Bounded& want,
                                     std::span<const double> own,
                                     std::span<const double> got) {
  return BestFit(got, want, {}, 1, exam.problem.channels,
                 {{"it was 0", [](size_t, size_t) { return 0.0; }},
                  {"each rank had the sum over all ranks",
                   [&](size_t, size_t c) {
                     return want.value[c] * exam.problem.world_size;
                   }},
                  {"the other ranks' parts were lost",
                   [&](size_t, size_t c) { return own[c]; }}});
}

}  // namespace lockstep
