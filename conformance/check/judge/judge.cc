#include "conformance/check/judge/judge.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/claims.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {
namespace {

using Found = std::map<Claim, Verdict>;

bool Failing(const Found& found, Claim claim) {
  const auto it = found.find(claim);
  return it != found.end() && it->second.outcome == Outcome::kFailed;
}

// The first failed claim that `claim` rests on: numbers can be compared only
// where the same samples were computed with, a state only where its gradients
// are right.
std::optional<Claim> LostGround(const Found& found, Claim claim) {
  static constexpr Claim kGrounds[] = {Claim::kRun, Claim::kSamples,
                                       Claim::kRanksAgree, Claim::kGradients,
                                       Claim::kState};
  for (const Claim ground : kGrounds) {
    if (ground == claim) break;
    if (Failing(found, ground)) return ground;
  }
  return std::nullopt;
}

// After a wrong state, losses differ for that reason; only the first step's
// can still be judged.
Verdict LossVerdict(Evidence& evidence, const Found& found) {
  const auto last = static_cast<int64_t>(evidence.one_rank().steps.size());
  const bool parts = Failing(found, Claim::kState);
  Verdict verdict = JudgeLoss(evidence, parts ? 1 : last);
  if (!parts || verdict.outcome != Outcome::kPassed) return verdict;
  return Skipped(evidence.check, Claim::kLoss,
                 "The first step's loss is right; later ones are not judged "
                 "because state failed.");
}

Verdict VerdictOf(Evidence& evidence, const Found& found, Claim claim) {
  // The loss does without the state; it is judged after it all the same.
  const auto ground = claim == Claim::kLoss ? LostGround(found, Claim::kState)
                                            : LostGround(found, claim);
  if (ground.has_value()) {
    return Skipped(
        evidence.check, claim,
        absl::StrCat("Not judged because ", ClaimName(*ground), " failed."));
  }
  switch (claim) {
    case Claim::kSamples:
      return JudgeSamples(evidence);
    case Claim::kRanksAgree:
      return JudgeRanksAgree(evidence);
    case Claim::kGradients:
      return JudgeGradients(evidence);
    case Claim::kLoss:
      return LossVerdict(evidence, found);
    case Claim::kState:
      return JudgeState(evidence);
    case Claim::kEvaluation:
      return JudgeEvaluation(evidence);
    case Claim::kRun:
      break;
  }
  return JudgeRun(evidence.check, evidence.runs);
}

}  // namespace

std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunExtra& run_extra) {
  Evidence evidence(check, runs, run_extra);
  Found found;
  Verdict run = JudgeRun(check, runs);
  const bool unsupported = run.outcome == Outcome::kSkipped;
  const std::string why = run.what;
  found[Claim::kRun] = std::move(run);
  std::vector<Claim> order = check.claims;
  // The state before the loss, which rests on it.
  std::stable_partition(order.begin(), order.end(),
                        [](Claim claim) { return claim != Claim::kLoss; });
  for (const Claim claim : order) {
    if (claim == Claim::kRun) continue;
    found[claim] = unsupported ? Skipped(check, claim, why)
                               : VerdictOf(evidence, found, claim);
  }
  std::vector<Verdict> verdicts;
  for (const Claim claim : check.claims) verdicts.push_back(found.at(claim));
  return verdicts;
}

}  // namespace lockstep
