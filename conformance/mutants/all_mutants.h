// Each folder's planted bugs as a BugSuite, and all of them.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutant.h"
#include "conformance/rejection.h"

namespace lockstep {

// Not to be called, nor a bug planted, by two threads at once.
std::vector<BugSuite> AllBugSuites();

BugSuite TrainingBugs();    // Of LeNet's training: mutants.h.
BugSuite EvaluationBugs();  // evaluation_mutants.h.
BugSuite SamplingBugs();    // sampling/faulty_sampler.h.
BugSuite BatchNormBugs();   // syncbn/faulty_batch_norm.h.
BugSuite NetworkBugs();     // network/network_mutants.h.
BugSuite CollectiveBugs();  // collectives/faulty_communicator.h.
BugSuite JudgeBugs();       // check/judge_faults.h.

// Of a check that starts its kDataLoss with its name and ": ". Errors: any
// other status that is not OK.
absl::StatusOr<Caught> CaughtBy(const absl::Status& status);

// The diagnosis is what the first says.
Caught CaughtBy(std::span<const Rejection> rejections);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_
