// Names of claims and outcomes.
#include "conformance/check/verdict.h"

namespace lockstep {

const char* ClaimName(Claim claim) {
  switch (claim) {
    case Claim::kRun:
      return "run";
    case Claim::kSamples:
      return "samples";
    case Claim::kRanksAgree:
      return "ranks_agree";
    case Claim::kGradients:
      return "gradients";
    case Claim::kLoss:
      return "loss";
    case Claim::kState:
      return "state";
    case Claim::kEvaluation:
      break;
  }
  return "evaluation";
}

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kDocumented:
      return "documented";
    case Outcome::kSkipped:
      break;
  }
  return "skipped";
}

}  // namespace lockstep
