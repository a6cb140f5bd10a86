#include "conformance/mutants/all_mutants.h"

#include <vector>

#include "conformance/check/judge/judge_mutants.h"
#include "conformance/collectives/collective_mutants.h"
#include "conformance/evaluation.h"
#include "conformance/mutant.h"
#include "conformance/network/network_mutants.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/training_run.h"

namespace lockstep {

std::vector<MutantSuite> AllMutantSuites() {
  return {TrainingMutants(),  EvaluationMutants(), SamplingMutants(),
          BatchNormMutants(), NetworkMutants(),    CollectiveMutants(),
          JudgeMutants()};
}

}  // namespace lockstep
