// Evaluation on N ranks and on one, and the check behind the claim that N ranks
// evaluate like one rank.
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

// A rank's report on some samples.
struct Evaluation {
  double loss = 0;      // The mean over samples.
  double accuracy = 0;  // The mean over samples.
  int64_t samples = 0;  // The number of counted samples.
};

// One rank's evaluation of the whole data set, which is the expected result,
// and of each batch, which serves to find causes.
struct OneRankEvaluation {
  Evaluation whole;
  std::vector<Evaluation> batches;
};

inline constexpr const char* kEvaluationChecks[] = {"RanksAgree", "Samples",
                                                    "Loss", "Accuracy"};

// Checks that every rank reports the one-rank evaluation, bit for bit. Asks in
// this order:
//
//   RanksAgree  do all ranks report the same?
//   Samples     is each sample counted once?
//   Loss        does the loss equal one rank's?
//   Accuracy    does the accuracy equal one rank's?
//
// Error: kDataLoss with one line that starts with the name, and gives the
// difference and its cause. A cause is given only if it yields the reported
// number. The causes: ranks that report their own share, a padded sampler, a
// partial batch that is left out, means of ranks without weights or without
// samples, sums that were rounded on the way. NaN fails if one rank has a
// number.
//
// A cause that yields the same number up to rounding is within 2 n * 2^-53 of
// it, relatively. The sum of n losses, none negative, has a relative error
// within (n - 1) * 2^-53 in any order (Higham 2002, section 4.2), on either
// side. The division adds one rounding to each side, to first order.
absl::Status CheckEvaluation(const OneRankEvaluation& want,
                             std::span<const Evaluation> ranks);

// A prime larger than ten batches, so neither ranks nor batches are even.
inline constexpr int64_t kEvaluationSamples = 1291;
static_assert(kEvaluationSamples > 10 * Trainer::kEvaluationBatch);

// The draw of LeNet's parameters that the suite evaluates.
inline constexpr uint32_t kEvaluationDraw = 53;

// Evaluates on one rank, without the code under test. The batches' losses,
// which must be below 2^20, are added exactly, as multiples of 2^-100. Errors:
// the model's; kInternal if a loss is too large or is not such a multiple.
absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(
    int64_t size, uint32_t draw = kEvaluationDraw);

// Evaluates a data set with a rank's model.
using Evaluator = absl::StatusOr<Evaluation>(Communicator& group, Model& model,
                                             const MemoryDataset& data);

// The evaluator under test.
Evaluator EvaluateByTrainer;

// Returns the evaluations by rank. Only rank 0's model is drawn; its parameters
// are then broadcast. Errors: the first rank's.
absl::StatusOr<std::vector<Evaluation>> RunEvaluation(
    Backend backend, int world_size, int64_t size, Evaluator& evaluate,
    uint32_t draw = kEvaluationDraw);

// Mutants of evaluation:
// - ReportOwnShare: every rank reports the metrics of its own share.
// - PadSampler: a sampler repeats samples so that ranks have equally many.
// - DropPartialBatch: the last batch is left out unless it is full.
// - AverageRanksMeans, AverageRanksAccuracies: the mean of the ranks' means, of
//   both metrics or of the accuracy alone.
// - SumPlainly: losses are added in float64, rank by rank.
Evaluator ReportOwnShare, PadSampler, DropPartialBatch, AverageRanksMeans,
    AverageRanksAccuracies, SumPlainly;

// Returns all mutants of evaluation, each planted where it must show.
MutantSuite EvaluationMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_H_
