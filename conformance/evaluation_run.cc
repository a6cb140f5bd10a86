// Evaluates a data set with LeNet on N ranks, and on one.
#include "conformance/evaluation_run.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation_check.h"
#include "conformance/reference/lenet_fixtures.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"

namespace lockstep {
namespace {

void SetParameters(Model& lenet, uint32_t draw) {
  const std::vector<float> values = HeLeNet(draw);
  std::copy(values.begin(), values.end(), lenet.parameters().values().begin());
}

Evaluation Mean(double loss_sum, int64_t correct, int64_t samples) {
  const double n = static_cast<double>(samples);
  return {loss_sum / n, static_cast<double>(correct) / n, samples};
}

}  // namespace

const Dataset& EvaluationData(int64_t size) {
  static auto& cache = *new std::map<int64_t, Dataset>;
  if (!cache.contains(size)) cache.emplace(size, BlobDataset(size));
  return cache.at(size);
}

Evaluation MeanOf(const Metrics& metrics) {
  return Mean(metrics.loss_sum, metrics.correct, metrics.samples);
}

absl::StatusOr<std::vector<Metrics>> EvaluateBatches(
    Model& model, const Dataset& data, std::span<const int64_t> samples) {
  std::vector<Metrics> parts;
  while (!samples.empty()) {
    const std::span<const int64_t> batch = samples.first(
        std::min<size_t>(samples.size(), Trainer::kEvaluationBatch));
    samples = samples.subspan(batch.size());
    std::vector<float> images(batch.size() * data.image_size());
    std::vector<int32_t> labels(batch.size());
    data.GatherImages(batch, images);
    data.GatherLabels(batch, labels);
    LOCKSTEP_ASSIGN_OR_RETURN(parts.emplace_back(),
                              model.Evaluate({images, labels}));
  }
  return parts;
}

absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(int64_t size,
                                                    uint32_t draw) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  SetParameters(*model, draw);
  std::vector<int64_t> samples(size);
  std::iota(samples.begin(), samples.end(), 0);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(*model, EvaluationData(size), samples));
  OneRankEvaluation result;
  __int128 loss = 0;
  Metrics sum;
  for (const Metrics& part : parts) {
    const double units = std::ldexp(part.loss_sum, 100);
    if (!(part.loss_sum < 0x1p20 && units == std::floor(units))) {
      return absl::InternalError("a loss cannot be added exactly");
    }
    loss += static_cast<__int128>(units);
    sum += part;
    result.batches.push_back(MeanOf(part));
  }
  result.whole = Mean(std::ldexp(static_cast<double>(loss), -100), sum.correct,
                      sum.samples);
  return result;
}

absl::StatusOr<Evaluation> EvaluateByTrainer(Communicator& group, Model& model,
                                             const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, model, data, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, trainer->Evaluate(data));
  return MeanOf(metrics);
}

absl::StatusOr<std::vector<Evaluation>> RunEvaluation(Backend backend,
                                                      int world_size,
                                                      int64_t size,
                                                      const Evaluator& evaluate,
                                                      uint32_t draw) {
  const Dataset& data = EvaluationData(size);
  const auto results = RunRanksCollect(
      backend, world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        SetComputeThreads(1);
        const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
        if (group.rank() == 0) SetParameters(*model, draw);
        LOCKSTEP_RETURN_IF_ERROR(
            BroadcastParameters(group, model->parameters()));
        LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation evaluation,
                                  evaluate(group, *model, data));
        return std::string(reinterpret_cast<const char*>(&evaluation),
                           sizeof(evaluation));
      });
  std::vector<Evaluation> ranks;
  for (const absl::StatusOr<std::string>& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(result.status());
    std::memcpy(&ranks.emplace_back(), result->data(), sizeof(Evaluation));
  }
  return ranks;
}

}  // namespace lockstep
