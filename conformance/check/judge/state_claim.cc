// Judges parameters and buffers after each step.
#include "conformance/check/judge/state_claim.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/judge/updates.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

using Names = std::vector<std::string>;

// Checks that frozen and unused parameters keep their start values, bit for
// bit. An unused parameter may also change as on one rank (by decay, if its
// gradient is 0).
std::optional<Judgement> FrozenAndUnusedVerdict(const Evidence& evidence,
                                                int64_t step) {
  const CheckCase& check = evidence.check;
  const Case& c = check.all_ranks.c;
  const Tensors start = StartOf(check);
  const Tensors one = TensorsOf(evidence.one_rank(), "parameter", step);
  const Tensors got = TensorsOf(evidence.rank(0), "parameter", step);
  for (const std::string& name : NamesInOrder(check)) {
    const auto found = got.find(name);
    if (!IsFrozenOrUnused(check, name) || found == got.end()) continue;
    const bool unused = Includes(c.unused, name);
    const auto alone = one.find(name);
    const Values& want =
        unused && alone != one.end() ? alone->second : start.at(name);
    const double off = LargestDifference(found->second, want);
    if (off == 0) continue;
    const std::string place = WithLayer(check, name);
    const Diagnosis diagnosis{
        .cause = unused ? Cause::kUnusedMoves : Cause::kFrozenMoves,
        .facts = {.step = step, .tensors = place}};
    return Failed(absl::StrFormat("After step %d, %s has moved by %.3g and "
                                  "should not have moved at all",
                                  step, place, off),
                  diagnosis);
  }
  return std::nullopt;
}

// The changes of tensors in `step`, on one rank and on all. Empty if the
// previous state was not written.
struct Updates {
  Tensors want, got;
};

Updates UpdatesOf(const Evidence& evidence, const RankOutput& output,
                  const std::string& kind, int64_t step) {
  return {UpdateOf(evidence, evidence.one_rank(), kind, step),
          UpdateOf(evidence, output, kind, step)};
}

// Returns the factor between the updates. In the first step, whose gradients
// are right, it is a factor of the learning rate. If updates are proportional
// to gradients, it may also come from a smaller batch.
std::optional<FoundFactor> UpdateFactor(const Evidence& evidence,
                                        const Names& names,
                                        const Updates& updates, int64_t step,
                                        const AllowedErrors& allowed) {
  const Case& c = evidence.c;
  std::vector<NamedFactor> named;
  if (c.momentum == 0 && c.weight_decay == 0) {
    named = BatchFactors(evidence.Counts(step),
                         static_cast<double>(c.global_batch()));
  }
  named.push_back(
      {static_cast<double>(evidence.world_size()), Cause::kLearningRateScaled});
  return FactorOf(names, updates.want, updates.got, allowed, named,
                  /*any=*/step == 1);
}

// Returns how strongly weight decay acted, relative to one rank, if that
// explains the update.
std::optional<double> DecayOf(const Evidence& evidence, const Names& names,
                              const Updates& updates, int64_t step,
                              const AllowedErrors& allowed) {
  const Tensors before =
      step == 1 ? StartOf(evidence.check)
                : TensorsOf(evidence.one_rank(), "parameter", step - 1);
  return DecayFactor(evidence, names, updates.want, updates.got,
                     -evidence.c.learning_rate, before, allowed);
}

Diagnosis DiagnoseParameters(const Evidence& evidence, const Compared& compared,
                             const Reference& reference, int64_t step) {
  const Names names = NamesOf(compared);
  const Updates updates =
      UpdatesOf(evidence, evidence.rank(0), "parameter", step);
  Diagnosis diagnosis{.cause = step > 1 ? Cause::kDrifts : Cause::kUnknown};
  diagnosis.facts.step = step;
  if (IsFirstAfterResume(evidence, step) &&
      HasLostMomentum(evidence, names, evidence.one_rank(), evidence.rank(0),
                      step, reference.allowed)) {
    diagnosis.cause = Cause::kMomentumLost;
    return diagnosis;
  }
  // An update is a difference of two numbers, and each of them may be off.
  AllowedErrors allowed = reference.allowed;
  for (auto& [name, one] : allowed) one.error *= 2;
  const auto decay = DecayOf(evidence, names, updates, step, allowed);
  if (decay.has_value()) {
    diagnosis.cause = Cause::kWeightDecayScaled;
    diagnosis.facts.k = *decay;
    return diagnosis;
  }
  const auto factor = UpdateFactor(evidence, names, updates, step, allowed);
  if (factor.has_value()) {
    diagnosis.cause = factor->cause == Cause::kScaled
                          ? Cause::kLearningRateScaled
                          : factor->cause;
    diagnosis.facts.k = factor->k;
  }
  return diagnosis;
}

// Returns the parameters after step 1 that follow from the reference's
// gradients. Used if one rank's run does not have the requested semantics.
Tensors AfterFirstStep(const Evidence& evidence, const Tensors& gradients) {
  const Case& c = evidence.c;
  Tensors start = StartOf(evidence.check);
  std::erase_if(start, [&gradients](const auto& entry) {
    return !gradients.contains(entry.first);
  });
  return PlusTimes(Times(1 - c.learning_rate * c.weight_decay, start),
                   -c.learning_rate, gradients);
}

// Returns the parameters that every rank should hold.
absl::StatusOr<Reference> ParameterReference(Evidence& evidence, int64_t step) {
  Reference reference = OneRanksReference(evidence, "parameter", step);
  if (evidence.c.batch_norm == "local") {
    const auto gradients = GradientReference(evidence, step);
    if (!gradients.ok()) return gradients.status();
    reference.want = AfterFirstStep(evidence, gradients->want);
  }
  return reference;
}

// Returns the buffers that a rank should hold: one rank's or, with local batch
// norm, those of the rank's own share.
absl::StatusOr<Reference> BufferReference(Evidence& evidence, int rank,
                                          int64_t step) {
  Reference reference = OneRanksReference(evidence, "buffer", step);
  if (evidence.c.batch_norm != "local") return reference;
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return shares.status();
  const ShareResult& share = (*shares)[rank];
  if (share.count > 0) reference.want = share.buffers;
  return reference;
}

bool HoldsAShare(Evidence& evidence, const Names& names, const Tensors& got,
                 const AllowedErrors& allowed) {
  const auto& shares = evidence.Shares();
  return shares.ok() && std::ranges::any_of(*shares, [&](const auto& share) {
           return share.count > 0 && Fits(names, share.buffers, got, allowed);
         });
}

// Returns whether a batch was counted twice. A second update with the same
// batch adds (1 - momentum) of the first. With momentum 0.1, a running
// statistic therefore moves 1.9 times as far; a counter of batches moves twice
// as far.
bool IsCountedTwice(const Evidence& evidence, const Compared& compared,
                    int rank, int64_t step, const AllowedErrors& allowed) {
  constexpr double kTwice = 1.9;
  const Updates updates =
      UpdatesOf(evidence, evidence.rank(rank), "buffer", step);
  const auto holds = [&](const std::string& name) {
    const double k = absl::EndsWith(name, "num_batches_tracked") ? 2 : kTwice;
    return Fits({name}, Times(k, updates.want), updates.got, allowed, 4);
  };
  const Names names = NamesOf(compared);
  return std::ranges::all_of(names, holds);
}

// Returns whether the buffers did not move in the step.
bool BuffersDidNotMove(const Evidence& evidence, const Names& names, int rank,
                       int64_t step) {
  const Updates updates =
      UpdatesOf(evidence, evidence.rank(rank), "buffer", step);
  return std::ranges::all_of(names, [&](const std::string& name) {
    const auto moved = updates.got.find(name);
    return moved != updates.got.end() && LargestMagnitude(moved->second) == 0;
  });
}

Diagnosis DiagnoseBuffers(Evidence& evidence, const Compared& compared,
                          const Tensors& got, int rank, int64_t step,
                          const Reference& reference) {
  Diagnosis diagnosis{.cause = step > 1 ? Cause::kDrifts : Cause::kUnknown};
  diagnosis.facts.step = step;
  diagnosis.facts.rank = rank;
  const Names names = NamesOf(compared);
  if (IsCountedTwice(evidence, compared, rank, step, reference.allowed)) {
    diagnosis.cause = Cause::kBuffersCountedTwice;
  } else if (BuffersDidNotMove(evidence, names, rank, step) ||
             (step == 1 &&
              HoldsAShare(evidence, names, got, reference.allowed))) {
    diagnosis.cause = Cause::kBuffersOfOneRank;
  }
  return diagnosis;
}

// Judges rank 0's parameters, or a rank's buffers, after a step.
Judgement JudgeTensors(Evidence& evidence, const std::string& kind, int rank,
                       int64_t step) {
  const CheckCase& check = evidence.check;
  const bool buffers = kind == "buffer";
  const auto reference = buffers ? BufferReference(evidence, rank, step)
                                 : ParameterReference(evidence, step);
  if (!reference.ok()) return ReferenceFailed(reference.status());
  const Tensors got = TensorsOf(evidence.rank(rank), kind, step);
  const Compared compared =
      Compare(check, reference->want, got, reference->allowed);
  const double error = compared.error_over_allowed;
  if (compared.differing.empty()) return Passed(error);
  const Difference* const noisy = FirstNotJudged(compared);
  const std::string what = absl::StrCat(
      buffers ? absl::StrCat("On rank ", rank, ": ") : "", "After step ", step,
      ", ", Describe(check, noisy ? *noisy : compared.differing.front()));
  if (noisy) return Failed(what, {.cause = Cause::kTooNoisy}, error);
  return Failed(
      what,
      buffers ? DiagnoseBuffers(evidence, compared, got, rank, step, *reference)
              : DiagnoseParameters(evidence, compared, *reference, step),
      error);
}

Judgement JudgeStep(Evidence& evidence, int64_t step) {
  if (auto verdict = FrozenAndUnusedVerdict(evidence, step)) return *verdict;
  Judgement verdict = JudgeTensors(evidence, "parameter", 0, step);
  for (int r = 0; r < evidence.world_size(); ++r) {
    if (verdict.outcome != Outcome::kPassed) break;
    const std::optional<double> before = verdict.error_over_allowed;
    verdict = JudgeTensors(evidence, "buffer", r, step);
    if (verdict.outcome != Outcome::kPassed) break;
    verdict.error_over_allowed = std::max(before, verdict.error_over_allowed);
  }
  return verdict;
}

}  // namespace

Judgement JudgeState(Evidence& evidence) {
  const Case& c = evidence.c;
  // With local batch norm, only the first step's shares are run again. In
  // bfloat16, a parameter that differs in its last float32 bit may be rounded
  // to another bfloat16, 2^-8 away, before the next step. After that, right
  // runs differ as much as wrong ones.
  const bool first_only = c.batch_norm == "local" || c.dtype == "bfloat16";
  double worst = 0;
  for (const int64_t step : c.write_state) {
    if (first_only && step > 1) break;
    const Judgement verdict = JudgeStep(evidence, step);
    if (verdict.outcome != Outcome::kPassed) return verdict;
    worst = std::max(worst, verdict.error_over_allowed.value_or(0));
  }
  return Passed(worst);
}

}  // namespace lockstep::conformance
