// Evaluation on N ranks and on one, and the check behind the claim "N ranks
// evaluate to what one rank evaluates to".
#ifndef LOCKSTEP_CONFORMANCE_EVALUATION_H_
#define LOCKSTEP_CONFORMANCE_EVALUATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {

// What a rank reports of some samples.
struct Evaluation {
  double loss = 0;      // The mean over samples.
  double accuracy = 0;  // Likewise.
  int64_t samples = 0;  // How many were counted.
};

// What one rank makes of the data set: of all of it, which is what is due, and
// of each batch, to look for causes in.
struct OneRankEvaluation {
  Evaluation whole;
  std::vector<Evaluation> batches;
};

inline constexpr const char* kEvaluationChecks[] = {"RanksAgree", "Samples",
                                                    "Loss", "Accuracy"};

// Every rank reports the one-rank evaluation, bit for bit. Asks in this order:
//
//   RanksAgree  do all ranks report the same?
//   Samples     is each sample counted once?
//   Loss        is the loss one rank's?
//   Accuracy    is the accuracy?
//
// Error: kDataLoss with one line that starts with the name and says what
// differs and the cause, if one gives what is reported: ranks that report their
// own share, a padded sampler, a partial batch that is left out, means of ranks
// without weights or without samples, or sums rounded on their way. NaN where
// one rank has a number fails.
//
// What gives the same but for rounding is within 2 n * 2^-53 of it: the sum of
// n losses, none of them negative, is within (n - 1) * 2^-53 of itself in any
// order (Higham 2002, section 4.2), either side's, and the division adds one
// rounding to each, to first order.
absl::Status CheckEvaluation(const OneRankEvaluation& want,
                             std::span<const Evaluation> ranks);

// A prime above ten batches, so that neither ranks nor batches are even.
inline constexpr int64_t kEvaluationSamples = 1291;
static_assert(kEvaluationSamples > 10 * Trainer::kEvaluationBatch);

// Of LeNet's parameters, at which the suite evaluates.
inline constexpr uint32_t kEvaluationDraw = 53;

// One rank, without the code under test: the batches' losses, which must be
// below 2^20, are added as whole multiples of 2^-100. Errors: the model's;
// kInternal if a loss is too large for that, or too small.
absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(
    int64_t size, uint32_t draw = kEvaluationDraw);

// How a rank evaluates a data set with its model.
using Evaluator = absl::StatusOr<Evaluation>(Communicator& group, Model& model,
                                             const MemoryDataset& data);

// What is under test.
Evaluator EvaluateByTrainer;

// By rank. Only rank 0's model is of the draw, until it is broadcast. Errors:
// the first rank's.
absl::StatusOr<std::vector<Evaluation>> RunEvaluation(
    Backend backend, int world_size, int64_t size, Evaluator& evaluate,
    uint32_t draw = kEvaluationDraw);

// Mutants of evaluation: every rank reports the metrics of its own share; ranks
// get as many samples each, by a sampler that repeats some; the last batch is
// left out unless it is whole; the mean of the ranks' means, of both metrics or
// of the accuracy alone; losses are added in float64, rank by rank.
Evaluator ReportOwnShare, PadSampler, DropPartialBatch, AverageRanksMeans,
    AverageRanksAccuracies, SumPlainly;

// Each of them, planted where it must show.
MutantSuite EvaluationMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_H_
