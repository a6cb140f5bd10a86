// Creates a problem's inputs and their reference.
#include "conformance/syncbn/solved_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

// The keys of random numbers.
enum Stream : uint64_t {
  kWeight = 1,
  kBias,
  kMean,
  kDeviation,
  kX,
  kDy,
  kResidual,
  kRunning,
  kSign,
};

// Returns a random number. Each stream has up to 2^32 elements on up to 64
// ranks.
double Draw(Stream stream, int step, int rank, int64_t i) {
  const auto high =
      static_cast<uint64_t>((stream * 4 + static_cast<uint64_t>(step)) * 64 +
                            static_cast<uint64_t>(rank));
  return Uniform(Hash(high << 32) + static_cast<uint64_t>(i));
}

double DrawOfChannel(Stream stream, int64_t c) { return Draw(stream, 0, 0, c); }

double DeviationOf(int64_t c) { return 1 + 0.5 * DrawOfChannel(kDeviation, c); }

double MeanOf(const BatchNormProblem& problem, int64_t c) {
  const double far = problem.type == DataType::kBFloat16 ? 64 : 1000;
  const double times = problem.offsets == Offsets::kFar ? far : 1;
  const double sign = DrawOfChannel(kSign, c) < 0 ? -1 : 1;
  return sign * times * DeviationOf(c) * (1 + 0.2 * DrawOfChannel(kMean, c));
}

ReferenceLayer MakeLayer(const BatchNormProblem& problem) {
  ReferenceLayer layer;
  layer.channels = problem.channels;
  layer.hw = problem.hw;
  layer.epsilon = OptionsOf(problem, {}).epsilon;
  layer.relu = HasRelu(problem.fused);
  const DataType type = StatisticsTypeOf(problem.type);
  for (int64_t c = 0; c < problem.channels; ++c) {
    const double weight = DrawOfChannel(kWeight, c);
    const double size = (weight < 0 ? -1 : 1) * (0.6 + std::fabs(weight));
    layer.weight.push_back(problem.affine ? RoundTo(type, size) : 1);
    layer.bias.push_back(problem.affine ? RoundTo(type, DrawOfChannel(kBias, c))
                                        : 0);
  }
  return layer;
}

ReferenceBatch MakeBatch(const BatchNormProblem& problem, int step, int rank,
                         int64_t n) {
  ReferenceBatch batch;
  batch.n = n;
  const bool drifts = problem.batches == RankBatches::kLarge;
  const double spike = IsSpiked(problem) ? 16 : 0;
  int64_t element = 0;
  for (int64_t sample = 0; sample < n; ++sample) {
    const double shift =
        std::cos(2.0 * rank + step) +
        (drifts ? 2 * static_cast<double>(sample) / static_cast<double>(n) - 1
                : 0);
    for (int64_t c = 0; c < problem.channels; ++c) {
      const double mean = MeanOf(problem, c);
      const double deviation = DeviationOf(c);
      for (int64_t i = 0; i < problem.hw; ++i, ++element) {
        const double z = Draw(kX, step, rank, element) +
                         Draw(kX, step, rank, ~element) + shift;
        const double dy = Draw(kDy, step, rank, element) + 0.3 * z + 0.4;
        const double last = i == problem.hw - 1 ? spike : 0;
        batch.x.push_back(RoundTo(problem.type, mean + deviation * (z + last)));
        batch.dy.push_back(RoundTo(problem.type, dy));
        if (!HasResidual(problem.fused)) continue;
        batch.residual.push_back(
            RoundTo(problem.type, Draw(kResidual, step, rank, element)));
      }
    }
  }
  return batch;
}

// Clears the upstream gradient of values where rounding decides what ReLU does.
void ClearDoubtfulGradients(const SolvedProblem& solved,
                            const ReferenceStatistics& statistics,
                            ReferenceBatch& batch) {
  if (!solved.layer.relu) return;
  const Bounded y =
      ReferenceBeforeRelu(solved.layer, statistics, batch, solved.precision);
  for (size_t i = 0; i < batch.dy.size(); ++i) {
    if (!(std::fabs(y.value[i]) > y.bound[i])) batch.dy[i] = 0;
  }
}

std::vector<EncodedBatch> EncodeAll(const SolvedProblem& solved,
                                    const SolvedStep& step, Layout layout) {
  const DataType type = solved.problem.type;
  std::vector<EncodedBatch> encoded;
  for (const ReferenceBatch& batch : step.ranks) {
    const ActivationShape shape = {batch.n, solved.problem.channels,
                                   solved.problem.hw, layout};
    encoded.push_back({Encode(type, ToLayout(shape, batch.x)),
                       HasResidual(solved.problem.fused)
                           ? Encode(type, ToLayout(shape, batch.residual))
                           : "",
                       Encode(type, ToLayout(shape, batch.dy))});
  }
  return encoded;
}

// Computes the step's reference from its inputs and running statistics.
void Finish(const SolvedProblem& solved, SolvedStep& step) {
  const ReferenceLayer& layer = solved.layer;
  const Precision& precision = solved.precision;
  step.statistics = step.training
                        ? StatisticsOf(layer, step.ranks, precision)
                        : ConstantStatistics(layer, step.running_mean,
                                             step.running_variance, precision);
  for (ReferenceBatch& batch : step.ranks) {
    ClearDoubtfulGradients(solved, step.statistics, batch);
    if (step.training) continue;
    const ReferenceStatistics own = StatisticsOf(layer, {&batch, 1}, precision);
    ClearDoubtfulGradients(solved, own, batch);
    step.own_statistics.push_back(own);
    step.own_want.push_back(ReferenceOf(layer, own, {&batch, 1}, precision));
  }
  step.want = ReferenceOf(layer, step.statistics, step.ranks, precision);
}

// Draws running statistics that no batch has produced.
void DrawRunning(const SolvedProblem& solved, int step,
                 std::vector<double>& mean, std::vector<double>& variance) {
  for (int64_t c = 0; c < solved.problem.channels; ++c) {
    const double off = Draw(kRunning, step, 0, c);
    const double deviation = DeviationOf(c);
    mean.push_back(RoundTo(solved.statistics_type,
                           MeanOf(solved.problem, c) + 0.5 * deviation * off));
    variance.push_back(RoundTo(solved.statistics_type,
                               deviation * deviation * (1 + 0.4 * off)));
  }
}

// Raises `most` to `value`. NaN stays.
void RaiseTo(double value, double& most) {
  if (std::isnan(value) || value > most) most = value;
}

// How well the reference checks one channel, on all ranks. Each bound is given
// as a fraction of the size at which it becomes meaningless.
struct ChannelMeaning {
  double y_bound = 0;
  double dx_bound = 0;
  double dweight_bound = 0;
  bool closed = true;  // ReLU clears every value.
  double dx = 0;       // The largest, in units of weight / deviation.
  double dweight = 0;
  double dbias = 0;

  bool HasMeaningfulBounds() const {
    return y_bound < 1 && dx_bound < 1 && dweight_bound < 1;
  }
  bool HasVanishingGradients() const {
    return !(dx > 0.05 && dx > dx_bound && dweight > 0.005 && dbias > 0.005);
  }
  std::string ToString() const {
    return absl::StrCat("bounds of y ", y_bound, ", dx ", dx_bound,
                        " and dweight ", dweight_bound, " of the largest; dx ",
                        dx, ", dweight ", dweight, ", dbias ", dbias);
  }
};

// Returns how well the reference checks a channel. A bound is meaningless from
// these sizes on: half a deviation of y; a quarter of weight / deviation, the
// scale of dx; a quarter of the number of values for dweight. If a value is z >
// 1 deviations from the mean, the limits of its y and dx are z times as large.
ChannelMeaning MeaningOf(const SolvedProblem& solved, const SolvedStep& step,
                         int64_t channel, int64_t count) {
  const auto c = static_cast<size_t>(channel);
  const double weight = std::fabs(solved.layer.weight[c]);
  const double r = step.statistics.inverse_deviation.value[c];
  const int64_t hw = solved.problem.hw;
  ChannelMeaning meaning;
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    const ReferenceBatch& batch = step.ranks[rank];
    const Bounded& y = step.want.y[rank];
    const Bounded& dx = step.want.dx[rank];
    for (int64_t n = 0; n < batch.n; ++n) {
      const int64_t begin = (n * solved.problem.channels + channel) * hw;
      for (int64_t at = begin; at < begin + hw; ++at) {
        const auto i = static_cast<size_t>(at);
        const double z = (batch.x[i] - step.statistics.mean.value[c]) * r;
        const double size = weight * std::max(1.0, std::fabs(z));
        if (step.want.dresidual[rank][i] != 0) meaning.closed = false;
        RaiseTo(y.bound[i] / (0.5 * size), meaning.y_bound);
        RaiseTo(dx.bound[i] / (0.25 * size * r), meaning.dx_bound);
        RaiseTo(std::fabs(dx.value[i]) / (weight * r), meaning.dx);
      }
    }
  }
  meaning.dweight = std::fabs(step.want.dweight.value[c]);
  meaning.dweight_bound =
      step.want.dweight.bound[c] / (0.25 * static_cast<double>(count));
  meaning.dbias = std::fabs(step.want.dbias.value[c]);
  return meaning;
}

absl::Status CheckStepMeaning(const SolvedProblem& solved,
                              const SolvedStep& step, int64_t count) {
  const int64_t channels = solved.problem.channels;
  int64_t vanishing = 0;
  int64_t closed = 0;
  for (int64_t c = 0; c < channels; ++c) {
    const ChannelMeaning meaning = MeaningOf(solved, step, c, count);
    if (meaning.closed) {
      ++closed;
    } else if (meaning.HasVanishingGradients()) {
      ++vanishing;
    }
    if (meaning.HasMeaningfulBounds() && 3 * vanishing <= channels &&
        closed + vanishing < channels) {
      continue;
    }
    return absl::InternalError(absl::StrCat(
        ToString(solved.problem), ": channel ", c, ": ", meaning.ToString(),
        "; ", vanishing, " channels have gradients near zero, ", closed,
        " have none"));
  }
  return absl::OkStatus();
}

}  // namespace

ActivationShape SolvedProblem::ShapeOf(int step, int rank,
                                       Layout layout) const {
  return {steps[static_cast<size_t>(step)].ranks[static_cast<size_t>(rank)].n,
          problem.channels, problem.hw, layout};
}

SolvedProblem SolveProblem(const BatchNormProblem& problem) {
  SolvedProblem solved;
  solved.problem = problem;
  solved.layer = MakeLayer(problem);
  solved.precision = PrecisionOf(problem.type);
  solved.statistics_type = StatisticsTypeOf(problem.type);
  DrawRunning(solved, 0, solved.first_mean, solved.first_variance);
  for (int i = 0; i < kSteps; ++i) {
    SolvedStep step;
    step.training = IsTraining(i);
    const std::vector<int64_t> sizes = BatchSizes(problem, i);
    for (int rank = 0; rank < problem.world_size; ++rank) {
      step.ranks.push_back(
          MakeBatch(problem, i, rank, sizes[static_cast<size_t>(rank)]));
    }
    DrawRunning(solved, i, step.running_mean, step.running_variance);
    Finish(solved, step);
    for (const Layout layout : LayoutsOf(problem.channels)) {
      step.inputs[layout] = EncodeAll(solved, step, layout);
    }
    solved.steps.push_back(std::move(step));
  }
  return solved;
}

absl::Status CheckMeaning(const SolvedProblem& solved) {
  for (const SolvedStep& step : solved.steps) {
    int64_t count = 0;
    for (const ReferenceBatch& batch : step.ranks) {
      count += batch.n * solved.problem.hw;
    }
    if (count < 4) continue;
    LOCKSTEP_RETURN_IF_ERROR(CheckStepMeaning(solved, step, count));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
