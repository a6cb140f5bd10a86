#include "conformance/check/judge/judge_mutants.h"

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_parts.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/judge.h"
#include "conformance/mutant.h"

namespace lockstep::conformance {
namespace {

constexpr JudgeMutant kOfRun[] = {
    {"hangs", "the ranks never end", Cause::kHangs},
    {"crashes", "a rank exits with status 1", Cause::kCrashes},
    {"writes_nothing", "it ends without a file", Cause::kWritesNothing},
    {"writes_garbage", "a file that is not JSON", Cause::kWritesGarbage},
    {"other_shape", "tensors of another shape", Cause::kWritesGarbage},
    {"foreign_index", "an index that the data do not have",
     Cause::kWritesGarbage},
    {"alone", "every rank thinks that it is the only one",
     Cause::kWrongWorldSize},
    {"nan_without_samples", "a rank without samples divides by their number",
     Cause::kNotFinite, "uneven_last_batch"},
    {"infinite_gradient", "a gradient overflows", Cause::kNotFinite},
    {"tensor_left_out", "one parameter is not written", Cause::kIncomplete},
    {"evaluation_left_out", "no metrics are written", Cause::kIncomplete,
     "evaluation"},
    {"others_hang", "the last rank skips its last batch, the others hang",
     Cause::kRankSkipsLastBatch},
    {"others_crash", "the last rank skips its last batch, the others crash",
     Cause::kRankSkipsLastBatch},
};

constexpr JudgeMutant kOfSamples[] = {
    {"no_set_epoch", "every epoch is shuffled with the same seed",
     Cause::kSameOrderEveryEpoch, "shuffled"},
    {"no_distributed_sampler", "every rank goes through all of the data",
     Cause::kRanksDrawTheSame},
    {"each_shuffles_alone",
     "every rank goes through all of the data in an order of its own",
     Cause::kRanksDrawTheSame, "shuffled"},
    {"seed_per_rank", "ranks shuffle with different seeds",
     Cause::kRanksShuffleApart, "shuffled"},
    {"padded", "the last batch is filled up with the first samples",
     Cause::kPadded, "uneven_last_batch"},
    {"rank_skips_last_batch", "the last rank leaves out its last batch",
     Cause::kRankSkipsLastBatch},
    {"drop_last", "the last batch is dropped", Cause::kDropsLastBatch,
     "uneven_last_batch"},
    {"resume_begins_epoch", "the epoch begins anew after a resume",
     Cause::kResumesAtStart, "resume"},
    {"resume_repeats_batch", "the last batch is trained again after a resume",
     Cause::kResumeRepeatsBatch, "resume"},
    {"resume_skips_batch", "a batch is left out after a resume",
     Cause::kResumeSkipsBatch, "resume"},
    {"shuffles_within_shards", "ranks shuffle parts of the data",
     Cause::kOrderDependsOnWorldSize, "shuffled"},
};

constexpr JudgeMutant kOfAgreement[] = {
    {"not_reduced", "no gradient is reduced", Cause::kNotReduced},
    {"not_reduced_with_dropout", "the same with dropout left on",
     Cause::kTooNoisy},
    {"reduced_with_neighbour", "each rank reduces with the next one only",
     Cause::kReducedInPart},
    {"own_order", "each rank adds the others' gradients to its own",
     Cause::kRanksRoundApart},
    {"one_left_out", "one parameter is left out of the reduction",
     Cause::kNotReduced},
    {"one_left_out_uneven", "the same with uneven batches", Cause::kNotReduced,
     "uneven_batches"},
    {"last_ranks_rate", "the last rank has another learning rate",
     Cause::kRanksUpdateApart},
    {"last_ranks_first_rate",
     "the last rank has another learning rate in the first step",
     Cause::kRanksUpdateApart},
    {"first_weights_differ", "the last rank begins with other weights",
     Cause::kFirstWeightsDiffer},
    {"momentum_lost_on_one_rank",
     "only the first rank loads its momentum after a resume",
     Cause::kMomentumLost, "resume"},
    {"frozen_decays_on_one_rank",
     "weight decay moves a frozen parameter on the last rank",
     Cause::kFrozenMoves, "frozen_parameter"},
    {"one_rank_drifts", "the last rank's learning rate falls from step 3 on",
     Cause::kDrifts},
};

constexpr JudgeMutant kOfGradients[] = {
    {"dropout", "dropout is left on", Cause::kTooNoisy},
    {"summed", "gradients are summed over ranks", Cause::kSummedNotAveraged},
    {"one_reduced_twice", "one parameter's gradient is reduced twice",
     Cause::kSummedNotAveraged},
    {"sum_of_means", "the ranks' means are summed", Cause::kSummedNotAveraged,
     "uneven_batches"},
    {"divided_twice", "gradients are divided by the ranks twice",
     Cause::kDividedTwice},
    {"accumulation_summed", "micro-batches are summed",
     Cause::kAccumulationNotScaled, "accumulation"},
    {"accumulation_divided_twice", "micro-batches are divided twice",
     Cause::kAccumulationNotScaled, "accumulation"},
    {"ranks_and_micro_batches", "both are summed", Cause::kRanksAndMicroBatches,
     "accumulation"},
    {"mean_of_means", "ranks are averaged without their counts",
     Cause::kMeanOfMeans, "uneven_batches"},
    {"mean_of_local_means", "the same with local batch norm",
     Cause::kMeanOfMeans, "local_bn"},
    {"first_ranks_gradients", "rank 0's gradients are broadcast",
     Cause::kNotReduced},
    {"loss_scale", "the loss is scaled and not unscaled", Cause::kScaled},
    {"summed_bfloat16", "gradients are summed, in bfloat16",
     Cause::kSummedNotAveraged, "bfloat16"},
    {"sum_over_samples", "the loss is a sum over a rank's samples",
     Cause::kLossIsSum},
    {"updates_each_micro_batch", "an update follows each micro-batch",
     Cause::kUpdatesEachMicroBatch, "accumulation"},
    {"scaled_updates_each_micro_batch",
     "the same with the loss divided by the micro-batches",
     Cause::kUpdatesEachMicroBatch, "accumulation"},
    {"decay_in_each_gradient",
     "each rank adds weight decay to its gradient before the sum",
     Cause::kWeightDecayScaled, "momentum"},
    {"reduced_in_bfloat16", "gradients are summed in bfloat16",
     Cause::kReducedInNarrowType},
    {"reduced_in_float16", "gradients are summed in float16",
     Cause::kReducedInNarrowType},
    {"local_batch_norm_backward",
     "batch norm's backward pass sums over a rank's own batch",
     Cause::kLocalBatchNormBackward, "sync_bn"},
    {"local_batch_norm", "batch norm is not synchronised",
     Cause::kLocalBatchNorm, "sync_bn"},
};

constexpr JudgeMutant kOfLoss[] = {
    {"unweighted_loss", "the loss is averaged without counts",
     Cause::kMeanOfMeans, "uneven_batches"},
    {"summed_loss", "the loss is summed over ranks", Cause::kSummedNotAveraged},
    {"reported_sum", "the reported loss is a sum over a rank's samples",
     Cause::kLossIsSum},
    {"first_ranks_loss", "rank 0's loss is reported by all",
     Cause::kMetricsOfOneRank},
    {"micro_batch_loss", "the loss is divided by the micro-batches twice",
     Cause::kAccumulationNotScaled, "accumulation"},
    {"scaled_loss", "the reported loss is scaled", Cause::kScaled},
    {"loss_of_full_batch", "the loss is divided by a full batch's size",
     Cause::kDividedByFullBatch, "uneven_last_batch"},
};

constexpr JudgeMutant kOfState[] = {
    {"full_batch", "gradients are divided by a full batch's size",
     Cause::kDividedByFullBatch, "uneven_last_batch"},
    {"idle_ranks", "ranks without samples count in the average",
     Cause::kMeanOfMeans, "uneven_last_batch"},
    {"local_buffers", "running statistics are of a rank's own batch",
     Cause::kBuffersOfOneRank, "sync_bn"},
    {"first_ranks_buffers", "rank 0's running statistics are broadcast",
     Cause::kBuffersOfOneRank, "local_bn"},
    {"only_first_rank_has_buffers",
     "ranks but the first leave their running statistics as they were",
     Cause::kBuffersOfOneRank, "sync_bn"},
    {"buffers_twice", "a batch enters the running statistics twice",
     Cause::kBuffersCountedTwice, "sync_bn"},
    {"rate_times_ranks", "the learning rate is multiplied by the ranks",
     Cause::kLearningRateScaled},
    {"rate_times_root", "the learning rate grows with the root of the ranks",
     Cause::kLearningRateScaled},
    {"decay_per_rank", "weight decay acts once for each rank",
     Cause::kWeightDecayScaled, "momentum"},
    {"no_decay", "weight decay is left out with several ranks",
     Cause::kWeightDecayScaled, "momentum"},
    {"momentum_lost", "momentum is not in the checkpoint", Cause::kMomentumLost,
     "resume"},
    {"frozen_decays", "weight decay moves a frozen parameter",
     Cause::kFrozenMoves, "frozen_parameter"},
    {"unused_decays", "an unused parameter gets a gradient of zero",
     Cause::kUnusedMoves, "unused_parameter"},
    {"other_schedule", "the learning rate falls from step 3 on",
     Cause::kDrifts},
};

constexpr JudgeMutant kOfEvaluation[] = {
    {"evaluation_padded", "test samples are repeated", Cause::kEvaluationPadded,
     "evaluation"},
    {"evaluation_tail_dropped", "the last test samples are left out",
     Cause::kDropsLastBatch, "evaluation"},
    {"evaluates_on_first_rank", "rank 0 alone evaluates its share",
     Cause::kMetricsOfOneRank, "evaluation"},
    {"mean_of_rank_metrics", "ranks' metrics are averaged without weights",
     Cause::kMetricsUnweighted, "evaluation"},
    {"mean_of_rank_accuracies",
     "ranks' accuracies are averaged without weights, beside a right loss",
     Cause::kMetricsUnweighted, "evaluation"},
    {"own_accuracy", "every rank reports its share's accuracy",
     Cause::kMetricsOfOneRank, "evaluation"},
    {"mean_of_batch_metrics", "batches' metrics are averaged without weights",
     Cause::kMetricsUnweighted, "evaluation"},
    {"own_metrics", "every rank reports its share's metrics",
     Cause::kMetricsOfOneRank, "evaluation"},
    {"first_ranks_metrics", "rank 0's metrics are broadcast",
     Cause::kMetricsOfOneRank, "evaluation"},
};

constexpr struct {
  Claim claim;
  std::span<const JudgeMutant> mutants;
} kTables[] = {{Claim::kRun, kOfRun},
               {Claim::kSamples, kOfSamples},
               {Claim::kRanksAgree, kOfAgreement},
               {Claim::kGradients, kOfGradients},
               {Claim::kLoss, kOfLoss},
               {Claim::kState, kOfState},
               {Claim::kEvaluation, kOfEvaluation}};

// Returns the beginning of a diagnosis. The marks around the name prevent one
// cause's name from matching the end of another's.
std::string Named(Cause cause) {
  return absl::StrCat("cause ", CauseName(cause), ": ");
}

Caught CaughtBy(const std::vector<Verdict>& verdicts) {
  Caught caught;
  for (const Verdict& verdict : verdicts) {
    if (verdict.outcome != Outcome::kFailed) continue;
    caught.checks.push_back(ClaimName(verdict.claim));
    if (!caught.diagnosis.empty()) continue;
    caught.diagnosis =
        absl::StrCat(Named(verdict.cause), verdict.what, " ", verdict.why);
  }
  return caught;
}

}  // namespace

std::vector<JudgeMutant> AllJudgeMutants() {
  std::vector<JudgeMutant> all;
  for (const auto& [claim, mutants] : kTables) {
    for (JudgeMutant mutant : mutants) {
      mutant.claim = claim;
      all.push_back(mutant);
    }
  }
  return all;
}

MutantSuite JudgeMutants() {
  std::vector<std::string> claims;
  for (const Claim claim : kAllClaims) claims.push_back(ClaimName(claim));
  std::vector<Mutant> mutants;
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    mutants.push_back(
        {.name = mutant.name,
         .planted = mutant.planted,
         .checks = {ClaimName(mutant.claim)},
         .says = Named(mutant.cause),
         .plant = [mutant]() -> absl::StatusOr<Caught> {
           return CaughtBy(JudgeTrainer(
               mutant.name, FakeCase(mutant.case_name, /*world_size=*/2)));
         }});
  }
  return MakeSuite("check", claims, std::move(mutants));
}

const CheckCase& FakeCase(const std::string& name, int world_size) {
  static auto& cases = *new std::map<std::pair<int, std::string>, CheckCase>;
  if (!cases.contains({world_size, name})) {
    for (CheckCase& check : BuiltInCases(world_size)) {
      CheckCase& made = cases[{world_size, check.name}];
      made = WithFakeModel(std::move(check));
    }
  }
  return cases.at({world_size, name});
}

std::vector<Verdict> JudgeTrainer(const std::string& mutant,
                                  const CheckCase& check) {
  return Judge(check, FakeRuns(check, mutant), FakeExtraRuns(mutant));
}

}  // namespace lockstep::conformance
