// The suites in one list; what checks say, as what became of a bug.
#include "conformance/mutants/all_mutants.h"

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/check/judge/judge_mutants.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/checks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_mutants.h"
#include "conformance/evaluation_check.h"
#include "conformance/evaluation_mutants.h"
#include "conformance/mutant.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/rejection.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/tested_sampler.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/training_mutants.h"

namespace lockstep {

std::vector<BugSuite> AllBugSuites() {
  return {TrainingBugs(), EvaluationBugs(), SamplingBugs(), BatchNormBugs(),
          NetworkBugs(),  CollectiveBugs(), JudgeBugs()};
}

absl::StatusOr<Caught> CaughtBy(const absl::Status& status) {
  if (status.ok()) return Caught{};
  if (status.code() != absl::StatusCode::kDataLoss) return status;
  const std::string message(status.message());
  const size_t end = message.find(": ");
  if (end == std::string::npos) {
    return absl::InternalError(
        absl::StrCat("no check's name begins '", message, "'"));
  }
  return Caught{{message.substr(0, end)}, message.substr(end + 2)};
}

Caught CaughtBy(std::span<const Rejection> rejections) {
  Caught caught;
  for (const Rejection& rejection : rejections) {
    caught.checks.push_back(rejection.check);
  }
  if (!rejections.empty()) caught.diagnosis = rejections[0].message;
  return caught;
}

// Planted bugs of LeNet's training.

BugSuite TrainingBugs() {
  BugSuite suite = {"training", {}, {}};
  for (const Check& check : AllChecks()) suite.checks.push_back(check.name);
  for (const Mutant& mutant : AllMutants()) {
    suite.bugs.push_back(
        {suite.folder,
         mutant.name,
         mutant.bug,
         {mutant.caught_by.begin(), mutant.caught_by.end()},
         mutant.says,
         [mutation = mutant.mutation]() -> absl::StatusOr<Caught> {
           LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Rejection> rejections,
                                     PlantMutation(mutation));
           return CaughtBy(rejections);
         }});
  }
  return suite;
}

// Planted bugs of evaluation.

BugSuite EvaluationBugs() {
  BugSuite suite = {"evaluation", EvaluationChecks(), {}};
  for (const EvaluationMutant& mutant : AllEvaluationMutants()) {
    suite.bugs.push_back(
        {suite.folder,
         mutant.name,
         mutant.bug,
         {mutant.check},
         mutant.says,
         [mutant] { return CaughtBy(PlantEvaluationMutant(mutant)); }});
  }
  return suite;
}

// Planted bugs of samplers.
namespace {

absl::StatusOr<Caught> Plant(const SamplingFault& fault) {
  for (const SamplingCase& c : SamplingFaultCases()) {
    if (MustShow(fault, c)) {
      return CaughtBy(CheckSampler(MakeFaulty(fault), c));
    }
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite SamplingBugs() {
  BugSuite suite = {"sampling", SamplingProperties(), {}};
  for (const SamplingFault& fault : AllSamplingFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.bug,
                          {fault.property},
                          fault.says,
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

// Planted bugs of batch norm.
namespace {

absl::StatusOr<Caught> Plant(const BatchNormFault& fault) {
  for (const BatchNormProblem& problem : FaultProblems(fault)) {
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      return CaughtBy(CheckFaulty(fault, MakeExam(problem), {variant})[0]);
    }
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite BatchNormBugs() {
  BugSuite suite = {"syncbn", BatchNormChecks(), {}};
  for (const BatchNormFault& fault : AllBatchNormFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.bug,
                          {fault.check},
                          fault.says,
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

// Planted bugs of a whole network with batch norm.
namespace {

// The diagnosis is that of the mutant's own check; empty if it did not reject.
absl::StatusOr<Caught> Plant(const NetworkMutant& mutant) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Rejection> rejections,
                            PlantNetworkMutant(mutant));
  Caught caught = CaughtBy(rejections);
  caught.diagnosis.clear();
  for (const Rejection& rejection : rejections) {
    if (rejection.check == mutant.check) caught.diagnosis = rejection.message;
  }
  return caught;
}

}  // namespace

BugSuite NetworkBugs() {
  BugSuite suite = {"network", NetworkCheckNames(), {}};
  for (const NetworkMutant& mutant : NetworkMutants()) {
    suite.bugs.push_back({suite.folder,
                          mutant.name,
                          mutant.bug,
                          {mutant.caught_by.begin(), mutant.caught_by.end()},
                          mutant.says,
                          [mutant] { return Plant(mutant); }});
  }
  return suite;
}

// Planted bugs of collectives.
namespace {

// ", as if ..." at the end of what a check says; all of it if there is none.
std::string CauseIn(const std::string& diagnosis) {
  const size_t begin = diagnosis.find(", as if ");
  return begin == std::string::npos ? diagnosis : diagnosis.substr(begin);
}

// What the ranks say together: of those that name the same cause, the first.
absl::StatusOr<Caught> Together(const std::vector<absl::Status>& ranks) {
  Caught all;
  std::set<std::string> checks, causes;
  for (const absl::Status& status : ranks) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Caught caught, CaughtBy(status));
    if (caught.checks.empty()) continue;
    if (checks.insert(caught.checks[0]).second) {
      all.checks.push_back(caught.checks[0]);
    }
    if (!causes.insert(CauseIn(caught.diagnosis)).second) continue;
    absl::StrAppend(&all.diagnosis, all.diagnosis.empty() ? "" : "; ",
                    caught.diagnosis);
  }
  return all;
}

absl::StatusOr<Caught> Plant(CollectiveFault fault) {
  for (const CollectiveCase& call : CollectiveCases(kFaultyRanks)) {
    if (!ShowsIn(fault, call)) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckFaulty(fault, {&call, 1}));
    return Together(by_case[0]);
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite CollectiveBugs() {
  BugSuite suite = {"collectives", CollectiveChecks(), {}};
  for (const CollectiveBug& bug : AllCollectiveBugs()) {
    std::vector<std::string> checks = {bug.check};
    checks.insert(checks.end(), bug.also.begin(), bug.also.end());
    suite.bugs.push_back({suite.folder, Name(bug.fault), bug.bug, checks,
                          bug.says,
                          [fault = bug.fault] { return Plant(fault); }});
  }
  return suite;
}

// Planted bugs of a trainer that `check` judges.
namespace {

// How a diagnosis begins, so that no cause's name is the end of another's.
std::string Named(Cause cause) {
  return absl::StrCat("cause ", CauseName(cause), ": ");
}

absl::StatusOr<Caught> Plant(const JudgeFault& fault) {
  Caught caught;
  for (const Verdict& verdict :
       JudgeFaulty(fault, FakeCase(fault.case_name, /*world_size=*/2))) {
    if (verdict.outcome != Outcome::kFailed) continue;
    caught.checks.push_back(ClaimName(verdict.claim));
    if (!caught.diagnosis.empty()) continue;
    caught.diagnosis =
        absl::StrCat(Named(verdict.cause), verdict.what, " ", verdict.why);
  }
  return caught;
}

}  // namespace

BugSuite JudgeBugs() {
  BugSuite suite = {"check", {}, {}};
  for (const Claim claim : kAllClaims) {
    suite.checks.push_back(ClaimName(claim));
  }
  for (const JudgeFault& fault : AllJudgeFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.planted,
                          {ClaimName(fault.claim)},
                          Named(fault.cause),
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

}  // namespace lockstep
