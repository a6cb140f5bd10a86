// Planted bugs of evaluation on N ranks: what CheckEvaluation must reject.
#ifndef LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/evaluation_check.h"
#include "conformance/evaluation_run.h"
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

// A bug, where it must show, and what must become of it.
struct EvaluationMutant {
  std::string name;
  std::string bug;    // What is wrong, in a phrase.
  std::string check;  // Which must reject it, and what it must say.
  std::string says;
  Evaluator evaluate;
  int64_t size = kEvaluationSamples;
  int world_size = 2;
  // It shows in the last bits alone, and where is chance that depends on the
  // machine: it is tried at several world sizes and draws until it does.
  bool by_chance = false;
};
std::vector<EvaluationMutant> AllEvaluationMutants();

// CheckEvaluation's verdict on the bug. Errors: also the run's.
absl::Status PlantEvaluationMutant(const EvaluationMutant& mutant);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_EVALUATION_MUTANTS_H_
