// Mutants of data-parallel training, planted around a run of LeNet (run.h).
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/run.h"

namespace lockstep::conformance {

// Calling returns a mutation whose group makes its calls with `run`; every rank
// has a copy. SumBy returns a `run` that sums float32 data in place with `sum`.
// Float32 data are the gradients: the metrics, float64 and int64, pass
// unchanged.
Mutation Calling(GroupMutant::RunWrong run);
GroupMutant::RunWrong SumBy(
    std::function<absl::Status(Communicator&, std::span<float>)> sum);
// Returns a mutation whose step is `step`; every rank has a copy.
Mutation Stepping(SteppedModel::Step step);

struct TrainingMutant {
  Mutant mutant;  // Not in a suite yet.
  Mutation mutation;
};

// Returns the mutants of LeNet's data-parallel training. They change how
// gradients and parameters travel between the ranks, what a step computes, its
// settings, or which samples a rank draws.
std::vector<TrainingMutant> AllTrainingMutants();

// Returns all training mutants as a suite, for the checks in AllChecks(). Each
// mutant is planted in a run of three ranks: threads, or the ranks of `run`.
// Its `says` belongs to the first check that rejects it.
MutantSuite TrainingMutants(const RankRunner& run = nullptr);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
