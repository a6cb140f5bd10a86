#include "conformance/check/judge/judge.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/evaluation_claim.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/gradient_claim.h"
#include "conformance/check/judge/loss_claim.h"
#include "conformance/check/judge/run_claim.h"
#include "conformance/check/judge/sample_claim.h"
#include "conformance/check/judge/state_claim.h"

namespace lockstep::conformance {

namespace {

// One row for each cause. Placeholders such as "{k}" are filled in.
struct Row {
  Cause cause;
  const char* name;
  const char* why;
  const char* fix;
};

constexpr Row kRows[] = {
    {Cause::kNone, "none", "", ""},
    {Cause::kUnknown, "unknown", "No known cause explains these numbers.",
     "Start from the first tensor, layer and step that differ, and compare "
     "what each rank holds there."},
    {Cause::kTooNoisy, "too_noisy",
     "One rank already gives other results when the samples of a step change "
     "places, as if something in the trainer were random.",
     "Turn off dropout, random augmentation and reduced-precision kernels "
     "(TF32) for the case, and seed everything that stays random."},
    // Runs.
    {Cause::kHangs, "hangs",
     "Either the trainer waits for something that never comes (with several "
     "ranks most often a collective call that another rank does not make), or "
     "it needs more time than --timeout allows.",
     "If the trainer is only slow, raise --timeout. Otherwise make every rank "
     "issue the same collective calls in the same order "
     "(TORCH_DISTRIBUTED_DEBUG=DETAIL shows which call each rank is in)."},
    {Cause::kCrashes, "crashes",
     "The trainer itself failed; its last lines show how.",
     "Read the trainer's last lines. If they do not show the cause, start the "
     "trainer by hand on this case: --keep=DIR keeps the case and prints the "
     "command."},
    {Cause::kWritesNothing, "writes_nothing",
     "The trainer ended well without writing rank<r>.json for {rank}.",
     "Write both files into the folder that LOCKSTEP_OUTPUT names, on every "
     "rank, with WriteRankOutput or lockstep_protocol.py."},
    {Cause::kWritesGarbage, "writes_garbage",
     "The files that the trainer wrote break the protocol.",
     "Write the files with WriteRankOutput or lockstep_protocol.py, which "
     "check the content."},
    {Cause::kWrongWorldSize, "wrong_world_size",
     "A rank has a world size that is not the number of started ranks.",
     "Take the world size from WORLD_SIZE, or put {world_size} into the "
     "command if it starts its own ranks, and initialise the process group "
     "before reading the world size from it."},
    {Cause::kNotFinite, "not_finite",
     "A number became NaN or infinite in step {step}.",
     "Look for a division by the number of samples of a rank that has none, "
     "a mean over an empty batch, or an overflow in the loss."},
    {Cause::kIncomplete, "incomplete",
     "The trainer left out what the case asks it to write.",
     "Write every gradient, parameter and buffer of the steps in the case's "
     "\"write\", and each step's loss."},
    // Samples.
    {Cause::kSameOrderEveryEpoch, "same_order_every_epoch",
     "The order of the samples is not drawn anew for each epoch.",
     "Call sampler.set_epoch(epoch) before every epoch, or mix the epoch into "
     "the shuffle's seed."},
    {Cause::kRanksDrawTheSame, "ranks_draw_the_same",
     "Every rank draws as if it were alone.",
     "Give each rank its share with "
     "DistributedSampler(dataset, num_replicas=world_size, rank=rank)."},
    {Cause::kRanksShuffleApart, "ranks_shuffle_apart",
     "Ranks shuffle with different seeds, so their shares overlap.",
     "Seed the shuffle alike on all ranks (DistributedSampler's seed must not "
     "depend on the rank) and take the rank's share after shuffling."},
    {Cause::kPadded, "padded",
     "Samples are repeated at the end of an epoch, so that every rank has "
     "equally many.",
     "Use a sampler that does not pad, so that ranks may have different "
     "numbers of samples, and weight gradients by samples."},
    {Cause::kRankSkipsLastBatch, "rank_skips_last_batch",
     "{rank} leaves out the last batch of an epoch that the others compute.",
     "Let a rank without samples still take part in the step's collective "
     "calls with a gradient of zero, or leave the batch out on all ranks."},
    {Cause::kDropsLastBatch, "drops_last_batch",
     "The samples that do not fill a last batch are left out.",
     "Set drop_last=False in the sampler and in the data loader."},
    {Cause::kResumesAtStart, "resumes_at_start",
     "After a resume, the epoch begins anew instead of continuing.",
     "Keep the position in the epoch in the checkpoint and skip the samples "
     "before it."},
    {Cause::kResumeRepeatsBatch, "resume_repeats_batch",
     "After a resume, the last batch before the checkpoint is trained again.",
     "Save the position after the step that ends before the checkpoint, and "
     "skip as many batches on resuming."},
    {Cause::kResumeSkipsBatch, "resume_skips_batch",
     "After a resume, a batch is left out: the next one is trained.",
     "Count finished steps only: skip as many batches on resuming as were "
     "trained before the checkpoint."},
    {Cause::kOrderDependsOnWorldSize, "order_depends_on_world_size",
     "Each epoch has every sample once, but which samples make a step depends "
     "on the number of ranks.",
     "Shuffle the whole set first and deal each global batch out to the ranks "
     "(rank r takes every N-th), instead of shuffling within a rank's part."},
    // Gradients.
    {Cause::kSummedNotAveraged, "summed_not_averaged",
     "{subject}{tensors} are {k} times {of} on {world_size} ranks: "
     "summed instead of averaged, or reduced twice.",
     "Divide the sum over ranks by their number once, or leave the reduction "
     "to DistributedDataParallel alone."},
    {Cause::kDividedTwice, "divided_twice",
     "{subject}{tensors} are {k} times {of} on {world_size} ranks: "
     "divided by the number of ranks once too often.",
     "Do not divide the loss or the gradients by the world size where the "
     "reduction averages already, as DistributedDataParallel does."},
    {Cause::kAccumulationNotScaled, "accumulation_not_scaled",
     "The result{tensors} is {k} times {of} with {accumulate} "
     "micro-batches: their sum is not divided as it should be.",
     "Divide each micro-batch's mean loss by their number (or sum the losses "
     "and divide once by the samples) before backward."},
    {Cause::kRanksAndMicroBatches, "ranks_and_micro_batches",
     "The result{tensors} is {k} times {of} with {world_size} ranks and "
     "{accumulate} micro-batches: neither sum is divided as it should be.",
     "Mend them one at a time: divide each micro-batch's mean loss by their "
     "number, and the sum over ranks by theirs, once each."},
    {Cause::kMeanOfMeans, "mean_of_means",
     "The ranks' means are averaged as if all ranks had equally many samples.",
     "Scale each rank's loss to local_sum * world_size / global_count before "
     "backward, since DistributedDataParallel averages over ranks."},
    {Cause::kDividedByFullBatch, "divided_by_full_batch",
     "In step {step}, whose batch is smaller than the others, the result is "
     "{k} times {of}: a sum over its samples is divided by the size of a full "
     "batch.",
     "Divide by the samples that the step has, over all ranks, and not by the "
     "requested batch size."},
    {Cause::kNotReduced, "not_reduced",
     "Gradients{tensors} are not reduced over the ranks: {rank} keeps those of "
     "its own share.",
     "Register every parameter with the model before wrapping it in "
     "DistributedDataParallel, call the wrapped model and not .module, and "
     "reduce once after no_sync()."},
    {Cause::kReducedInPart, "reduced_in_part",
     "Gradients{tensors} are right on average over the ranks and on no rank: "
     "they are reduced over some of the ranks only, in part, or not at all.",
     "Reduce over the group of all ranks, once, before the update, and not "
     "only "
     "over the ranks of a node, neighbours or a subgroup."},
    {Cause::kRanksRoundApart, "ranks_round_apart",
     "Every rank's gradients{tensors} are right up to rounding, but the ranks' "
     "bits differ: ranks add the same numbers in different orders, and will "
     "drift apart.",
     "Give all ranks the same sum: reduce on one rank and broadcast, use a "
     "collective that gives every rank the same bits, or add in the order of "
     "the ranks, not the own part first."},
    {Cause::kReducedInNarrowType, "reduced_in_narrow_type",
     "Gradients{tensors} are right up to rounding to {of}: they are reduced "
     "in that type.",
     "Reduce in float32: cast gradients after the sum over ranks, not "
     "before, and register no hook that compresses them."},
    {Cause::kScaled, "scaled",
     "The result{tensors} is {k} times {of}, which is neither the number of "
     "ranks or micro-batches nor made of them.",
     "Look for a constant factor on the loss: a mean over something other "
     "than samples, or a gradient scaler that is not undone."},
    // Losses.
    {Cause::kLossIsSum, "loss_is_sum",
     "A rank's loss is the sum over its samples and not their mean, so it and "
     "its gradients depend on how many samples a rank has.",
     "Take the mean over samples (reduction='mean'), in backward() and in what "
     "is reported."},
    // Batch norm.
    {Cause::kLocalBatchNorm, "local_batch_norm",
     "Each rank normalises over its own batch and not over all ranks'.",
     "Call torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before "
     "wrapping the model in DistributedDataParallel."},
    {Cause::kLocalBatchNormBackward, "local_batch_norm_backward",
     "The loss and the gradients behind the last batch norm are right, and "
     "those before it{tensors} are not: batch norm's backward pass sums over "
     "the rank's own batch.",
     "All-reduce the two sums of batch norm's backward pass (of dy and of dy "
     "times the normalised input) as the forward pass does its statistics, or "
     "use torch.nn.SyncBatchNorm."},
    {Cause::kBuffersOfOneRank, "buffers_of_one_rank",
     "{rank} holds running statistics of other batches than it normalises "
     "with, or of none.",
     "Update running statistics from the same merged statistics that "
     "normalise; SyncBatchNorm does, and broadcast_buffers only copies rank "
     "0's."},
    {Cause::kBuffersCountedTwice, "buffers_counted_twice",
     "A batch enters the running statistics twice.",
     "Run the forward pass once per step in training mode, with "
     "model.eval() or no statistics in any second pass."},
    // Updates.
    {Cause::kLearningRateScaled, "learning_rate_scaled",
     "The first step's gradients are right, but the update is {k} times one "
     "rank's on {world_size} ranks: the learning rate depends on their number.",
     "Use the case's learning rate as it is: the global batch is the same at "
     "every world size, so the learning rate must not be scaled."},
    {Cause::kWeightDecayScaled, "weight_decay_scaled",
     "Weight decay is {k} times as strong as on one rank, with {world_size} "
     "ranks.",
     "Let weight decay act once for each update, in the optimizer or after "
     "the reduction: if every rank adds it before the sum, it counts once per "
     "rank."},
    {Cause::kUpdatesEachMicroBatch, "updates_each_micro_batch",
     "The parameters are those of an update after each of {accumulate} "
     "micro-batches, but the case asks for one update for all of them.",
     "Call optimizer.step() and zero_grad() once, after the last micro-batch "
     "of a step."},
    {Cause::kFirstWeightsDiffer, "first_weights_differ",
     "{rank} makes the same updates as rank 0, from other first weights.",
     "Broadcast rank 0's parameters and buffers before the first step (as "
     "DistributedDataParallel does when it wraps a model), or load the same "
     "weights on every rank."},
    {Cause::kRanksUpdateApart, "ranks_update_apart",
     "In step {step} all ranks have the same gradients, but {rank} has another "
     "parameter after the update: the ranks' optimizers differ.",
     "Give every rank's optimizer the same learning rate, momentum, weight "
     "decay and state; let nothing in the update depend on the rank."},
    {Cause::kMomentumLost, "momentum_lost",
     "After the resume, in step {step}, momentum starts from zero{on_rank}.",
     "Put optimizer.state_dict() into the checkpoint and load it on every "
     "rank before the first step."},
    {Cause::kFrozenMoves, "frozen_moves", "{named} is frozen, but it changes.",
     "Give the optimizer only parameters with requires_grad; weight decay "
     "changes the others even without a gradient."},
    {Cause::kUnusedMoves, "unused_moves",
     "{named} has no part in the loss, but it changes on {world_size} ranks "
     "and "
     "not on one.",
     "Keep its gradient None (zero_grad(set_to_none=True), "
     "find_unused_parameters=True), since weight decay and momentum act on a "
     "gradient of zero."},
    {Cause::kDrifts, "drifts",
     "The parameters differ from step {step} on; the steps before it were "
     "right.",
     "Look at everything that enters an update besides the first step's "
     "gradient: the "
     "optimizer's state, later gradients, schedules, clipping by a local "
     "norm."},
    // Evaluation.
    {Cause::kEvaluationPadded, "evaluation_padded",
     "Test samples are repeated so that every rank evaluates equally many, and "
     "the repeated samples count twice.",
     "Evaluate with a sampler that does not pad, or drop the repeated samples "
     "before the metrics are summed."},
    {Cause::kMetricsUnweighted, "metrics_unweighted",
     "The means of ranks or of batches are averaged without weights.",
     "Sum correct answers, losses and counts over batches and ranks, and "
     "divide once at the end."},
    {Cause::kMetricsOfOneRank, "metrics_of_one_rank",
     "{rank} reports the metrics of one rank's share.",
     "All-reduce the sums of losses, correct answers and counts before "
     "dividing."}};

const Row& RowOf(Cause cause) {
  return *std::ranges::find(kRows, cause, &Row::cause);
}

std::string Filled(const char* text, const CauseFacts& facts) {
  const std::string tensors =
      facts.tensors.empty() ? "" : absl::StrCat(" of ", facts.tensors);
  const std::string rank =
      facts.rank < 0 ? "a rank" : absl::StrCat("rank ", facts.rank);
  std::string filled = absl::StrReplaceAll(
      text,
      {{"{k}", absl::StrFormat("%.4g", facts.k)},
       {"{world_size}", absl::StrCat(facts.world_size)},
       {"{rank}", rank},
       {"{on_rank}", facts.rank < 0 ? "" : absl::StrCat(" on ", rank)},
       {"{step}", absl::StrCat(facts.step)},
       {"{accumulate}", absl::StrCat(facts.accumulate)},
       {"{tensors}", tensors},
       {"{of}", facts.of},
       {"{subject}", facts.subject},
       {"{named}", facts.tensors.empty() ? "A parameter" : facts.tensors}});
  if (filled.starts_with("a rank")) filled[0] = 'A';
  if (filled.starts_with("rank ")) filled[0] = 'R';
  return filled;
}

}  // namespace

const char* OutcomeName(Outcome outcome) {
  constexpr const char* kNames[] = {"passed", "failed", "documented",
                                    "skipped"};
  return kNames[static_cast<size_t>(outcome)];
}

std::vector<Cause> AllCauses() {
  std::vector<Cause> all;
  for (const Row& row : kRows) all.push_back(row.cause);
  return all;
}

std::string CauseName(Cause cause) { return RowOf(cause).name; }

Explanation Explain(Cause cause, const CauseFacts& facts) {
  const Row& row = RowOf(cause);
  // The placeholder in this text belongs to the command line, not to the facts.
  const char* fix = row.fix;
  return {.why = Filled(row.why, facts),
          .fix = cause == Cause::kWrongWorldSize ? std::string(fix)
                                                 : Filled(fix, facts)};
}

namespace {

using Found = std::map<Claim, Judgement>;

bool Failing(const Found& found, Claim claim) {
  return found.contains(claim) && found.at(claim).outcome == Outcome::kFailed;
}

// Returns the first failed claim that `claim` rests on. Numbers can be compared
// only if the same samples were used, and a state only if its gradients are
// right.
std::optional<Claim> FirstFailedPrerequisite(const Found& found, Claim claim) {
  for (const Claim ground : kAllClaims) {
    if (ground == claim) break;
    if (ground != Claim::kLoss && Failing(found, ground)) return ground;
  }
  return std::nullopt;
}

// Judges the losses. After a wrong state, later losses differ for that reason,
// so only the first step's loss is judged.
Judgement LossJudgement(Evidence& evidence, const Found& found) {
  const auto last = static_cast<int64_t>(evidence.one_rank().steps.size());
  const bool parts = Failing(found, Claim::kState);
  const Judgement judgement = JudgeLoss(evidence, parts ? 1 : last);
  if (!parts || judgement.outcome != Outcome::kPassed) return judgement;
  return Skipped(
      "The first step's loss is right; later ones are not judged because state "
      "failed.");
}

Judgement JudgementOf(Evidence& evidence, const Found& found, Claim claim) {
  if (const auto ground = FirstFailedPrerequisite(found, claim)) {
    return Skipped(
        absl::StrCat("Not judged because ", ClaimName(*ground), " failed."));
  }
  switch (claim) {
    case Claim::kRun:
      return JudgeRun(evidence);
    case Claim::kSamples:
      return JudgeSamples(evidence);
    case Claim::kRanksAgree:
      return JudgeRanksAgree(evidence);
    case Claim::kGradients:
      return JudgeGradients(evidence);
    case Claim::kLoss:
      return LossJudgement(evidence, found);
    case Claim::kState:
      return JudgeState(evidence);
    case Claim::kEvaluation:
      return JudgeEvaluation(evidence);
  }
  return {};  // Not reached.
}

Verdict VerdictOf(const CheckCase& check, const CaseRuns& runs, Claim claim,
                  const Judgement& judgement) {
  Verdict verdict = {.case_name = check.name,
                     .claim = claim,
                     .outcome = judgement.outcome,
                     .error_over_allowed = judgement.error_over_allowed,
                     .what = judgement.what};
  if (judgement.outcome != Outcome::kFailed) return verdict;
  verdict.what += ".";
  verdict.cause = judgement.diagnosis.cause;
  CauseFacts facts = judgement.diagnosis.facts;
  facts.world_size = check.all_ranks.c.world_size();
  facts.accumulate = check.all_ranks.c.accumulate;
  const Explanation explanation = Explain(verdict.cause, facts);
  verdict.why = explanation.why;
  verdict.fix = explanation.fix;
  if (judgement.run != nullptr) verdict.last_lines = judgement.run->last_lines;
  const TrainerRun& at_fault =
      judgement.run != nullptr ? *judgement.run : runs.all_ranks;
  verdict.by_hand = at_fault.by_hand;
  return verdict;
}

}  // namespace

std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunExtra& run_extra) {
  Evidence evidence{check, runs, run_extra};
  Found found;
  const Judgement run = found[Claim::kRun] = JudgeRun(evidence);
  const bool unsupported = run.outcome == Outcome::kSkipped;
  std::vector<Claim> order = check.claims;
  // The loss rests on the state, so the state is judged first.
  std::ranges::stable_partition(
      order, [](Claim claim) { return claim != Claim::kLoss; });
  for (const Claim claim : order) {
    if (claim == Claim::kRun) continue;
    found[claim] = unsupported ? run : JudgementOf(evidence, found, claim);
  }
  std::vector<Verdict> verdicts;
  for (const Claim claim : check.claims) {
    verdicts.push_back(VerdictOf(check, runs, claim, found.at(claim)));
  }
  return verdicts;
}

}  // namespace lockstep::conformance
