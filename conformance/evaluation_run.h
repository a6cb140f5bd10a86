// Evaluates a data set with LeNet on N ranks, and on one.
#ifndef LOCKSTEP_CONFORMANCE_EVALUATION_RUN_H_
#define LOCKSTEP_CONFORMANCE_EVALUATION_RUN_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation_check.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"

namespace lockstep {

// A prime above ten batches, so that neither ranks nor batches are even.
inline constexpr int64_t kEvaluationSamples = 1291;
static_assert(kEvaluationSamples > 10 * Trainer::kEvaluationBatch);

// Of LeNet's parameters, at which the suite evaluates.
inline constexpr uint32_t kEvaluationDraw = 53;

// BlobDataset, made once.
const Dataset& EvaluationData(int64_t size);

Evaluation MeanOf(const Metrics& metrics);

// What the model makes of each batch of the samples, in order.
absl::StatusOr<std::vector<Metrics>> EvaluateBatches(
    Model& model, const Dataset& data, std::span<const int64_t> samples);

// One rank, without the code under test: the batches' losses, which must be
// below 2^20, are added as whole multiples of 2^-100. Errors: the model's;
// kInternal if a loss is too large for that, or too small.
absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(
    int64_t size, uint32_t draw = kEvaluationDraw);

// How a rank evaluates a data set with its model.
using Evaluator = std::function<absl::StatusOr<Evaluation>(
    Communicator&, Model&, const Dataset&)>;

// What is under test.
absl::StatusOr<Evaluation> EvaluateByTrainer(Communicator& group, Model& model,
                                             const Dataset& data);

// By rank. Only rank 0's model is of the draw, until it is broadcast. Errors:
// the first rank's.
absl::StatusOr<std::vector<Evaluation>> RunEvaluation(
    Backend backend, int world_size, int64_t size, const Evaluator& evaluate,
    uint32_t draw = kEvaluationDraw);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_RUN_H_
