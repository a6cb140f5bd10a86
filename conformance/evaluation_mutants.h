// Mutants of evaluation on N ranks: what CheckEvaluation must reject.
#ifndef LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/evaluation.h"
#include "conformance/mutant.h"
#include "models/data/dataset.h"
#include "models/model.h"

namespace lockstep {

// Each of them is an Evaluator.
//
// Every rank reports the metrics of its own share.
absl::StatusOr<Evaluation> ReportOwnShare(Communicator& group, Model& model,
                                          const Dataset& data);
// Ranks get as many samples each, by a sampler that repeats some.
absl::StatusOr<Evaluation> PadSampler(Communicator& group, Model& model,
                                      const Dataset& data);
// The last batch is left out unless it is whole.
absl::StatusOr<Evaluation> DropPartialBatch(Communicator& group, Model& model,
                                            const Dataset& data);
// The mean of the ranks' means, of both metrics ...
absl::StatusOr<Evaluation> AverageRanksMeans(Communicator& group, Model& model,
                                             const Dataset& data);
// ... and of the accuracy alone.
absl::StatusOr<Evaluation> AverageRanksAccuracies(Communicator& group,
                                                  Model& model,
                                                  const Dataset& data);
// Losses are added in float64, rank by rank.
absl::StatusOr<Evaluation> SumPlainly(Communicator& group, Model& model,
                                      const Dataset& data);

// Those above, each planted where it must show.
MutantSuite EvaluationMutants();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_
