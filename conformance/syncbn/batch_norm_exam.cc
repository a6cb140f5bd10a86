// Makes inputs and their reference.
#include "conformance/syncbn/batch_norm_exam.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/data_type.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/batch_norm_values.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

// Keys of what is random.
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

// Of up to 2^32 elements of a stream on up to 64 ranks.
double Draw(Stream stream, int step, int rank, int64_t i) {
  const auto high =
      static_cast<uint64_t>((stream * 4 + static_cast<uint64_t>(step)) * 64 +
                            static_cast<uint64_t>(rank));
  return Uniform(Hash(high << 32) + static_cast<uint64_t>(i));
}

double DrawOfChannel(Stream stream, int64_t c) { return Draw(stream, 0, 0, c); }

double DeviationOf(int64_t c) { return 1 + 0.5 * DrawOfChannel(kDeviation, c); }

double MeanOf(const BatchNormProblem& problem, int64_t c) {
  const double times = problem.offsets == Offsets::kFar ? 1000 : 1;
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
  const double shift = std::cos(2.0 * rank + step);
  int64_t element = 0;
  for (int64_t sample = 0; sample < n; ++sample) {
    for (int64_t c = 0; c < problem.channels; ++c) {
      const double mean = MeanOf(problem, c);
      const double deviation = DeviationOf(c);
      for (int64_t i = 0; i < problem.hw; ++i, ++element) {
        const double z = Draw(kX, step, rank, element) +
                         Draw(kX, step, rank, ~element) + shift;
        const double dy = Draw(kDy, step, rank, element) + 0.3 * z + 0.4;
        batch.x.push_back(RoundTo(problem.type, mean + deviation * z));
        batch.dy.push_back(RoundTo(problem.type, dy));
        if (!HasResidual(problem.fused)) continue;
        batch.residual.push_back(
            RoundTo(problem.type, Draw(kResidual, step, rank, element)));
      }
    }
  }
  return batch;
}

// Takes the gradient away where rounding decides what ReLU does.
void Forgive(const BatchNormExam& exam, const ReferenceStatistics& statistics,
             ReferenceBatch& batch) {
  if (!exam.layer.relu) return;
  const Bounded y =
      ReferenceBeforeRelu(exam.layer, statistics, batch, exam.precision);
  for (size_t i = 0; i < batch.dy.size(); ++i) {
    if (!(std::fabs(y.value[i]) > y.bound[i])) batch.dy[i] = 0;
  }
}

std::vector<EncodedBatch> EncodeAll(const BatchNormExam& exam,
                                    const ExamStep& step, Layout layout) {
  const DataType type = exam.problem.type;
  std::vector<EncodedBatch> encoded;
  for (const ReferenceBatch& batch : step.ranks) {
    const ActivationShape shape = {batch.n, exam.problem.channels,
                                   exam.problem.hw, layout};
    encoded.push_back({Encode(type, ToLayout(shape, batch.x)),
                       HasResidual(exam.problem.fused)
                           ? Encode(type, ToLayout(shape, batch.residual))
                           : "",
                       Encode(type, ToLayout(shape, batch.dy))});
  }
  return encoded;
}

void FinishTraining(const BatchNormExam& exam, ExamStep& step) {
  step.statistics = StatisticsOf(exam.layer, step.ranks, exam.precision);
  for (ReferenceBatch& batch : step.ranks) {
    Forgive(exam, step.statistics, batch);
  }
  step.want =
      ReferenceOf(exam.layer, step.statistics, step.ranks, exam.precision);
}

void FinishEvaluation(const BatchNormExam& exam, ExamStep& step) {
  step.statistics = ConstantStatistics(exam.layer, step.running_mean,
                                       step.running_variance, exam.precision);
  for (ReferenceBatch& batch : step.ranks) {
    step.own_statistics.push_back(
        StatisticsOf(exam.layer, {&batch, 1}, exam.precision));
    Forgive(exam, step.statistics, batch);
    Forgive(exam, step.own_statistics.back(), batch);
    step.own_want.push_back(ReferenceOf(exam.layer, step.own_statistics.back(),
                                        {&batch, 1}, exam.precision));
  }
  step.want =
      ReferenceOf(exam.layer, step.statistics, step.ranks, exam.precision);
}

// Running statistics that no batch gave.
void DrawRunning(const BatchNormExam& exam, int step, std::vector<double>& mean,
                 std::vector<double>& variance) {
  for (int64_t c = 0; c < exam.problem.channels; ++c) {
    const double off = Draw(kRunning, step, 0, c);
    const double deviation = DeviationOf(c);
    mean.push_back(RoundTo(exam.statistics_type,
                           MeanOf(exam.problem, c) + 0.5 * deviation * off));
    variance.push_back(
        RoundTo(exam.statistics_type, deviation * deviation * (1 + 0.4 * off)));
  }
}

double Largest(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

}  // namespace

ActivationShape BatchNormExam::ShapeOf(int step, int rank,
                                       Layout layout) const {
  return {steps[static_cast<size_t>(step)].ranks[static_cast<size_t>(rank)].n,
          problem.channels, problem.hw, layout};
}

BatchNormExam MakeExam(const BatchNormProblem& problem) {
  BatchNormExam exam;
  exam.problem = problem;
  exam.layer = MakeLayer(problem);
  exam.precision = PrecisionOf(problem.type);
  exam.statistics_type = StatisticsTypeOf(problem.type);
  DrawRunning(exam, 0, exam.first_mean, exam.first_variance);
  for (int i = 0; i < kSteps; ++i) {
    ExamStep step;
    step.training = IsTraining(i);
    const std::vector<int64_t> sizes = BatchSizes(problem, i);
    for (int rank = 0; rank < problem.world_size; ++rank) {
      step.ranks.push_back(
          MakeBatch(problem, i, rank, sizes[static_cast<size_t>(rank)]));
    }
    DrawRunning(exam, i, step.running_mean, step.running_variance);
    if (step.training) {
      FinishTraining(exam, step);
    } else {
      FinishEvaluation(exam, step);
    }
    step.nchw = EncodeAll(exam, step, Layout::kNchw);
    step.nhwc = EncodeAll(exam, step, Layout::kNhwc);
    exam.steps.push_back(std::move(step));
  }
  return exam;
}

absl::Status CheckMeaning(const BatchNormExam& exam) {
  for (const ExamStep& step : exam.steps) {
    int64_t count = 0;
    double dx = 0;
    double dx_bound = 0;
    double bound = 0;
    for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
      count += step.ranks[rank].n * exam.problem.hw;
      bound = std::max(bound, Largest(step.want.y[rank].bound));
      dx = std::max(dx, Largest(step.want.dx[rank].value));
      dx_bound = std::max(dx_bound, Largest(step.want.dx[rank].bound));
    }
    if (count < 4) continue;
    const double dweight = Largest(step.want.dweight.value);
    const double dbias = Largest(step.want.dbias.value);
    if (!(bound < 0.5) || !(dx > 0.05 && dx > 4 * dx_bound) ||
        !(dweight > 0.005) || !(dbias > 0.005)) {
      return absl::InternalError(absl::StrCat(
          ToString(exam.problem), ": dx ", dx, " with bound ", dx_bound,
          ", dweight ", dweight, ", dbias ", dbias, ", bound of y ", bound));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
