// Parts of the fake trainer, each with its mutants: which samples the ranks
// take, and what they report and write.
//
// Internal to the fake trainer.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {

template <typename T>
bool Has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

struct FakeStep {
  int64_t epoch = 0;
  std::vector<std::vector<int64_t>> shares;  // By rank.
};

// All steps of a run on `size` samples, of both starts where there are two.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   TrainerMutant mutant);

// The test samples of each rank: every N-th.
std::vector<std::vector<int64_t>> FakeTestShares(int world_size, int64_t size,
                                                 TrainerMutant mutant);

// The losses that the ranks report for a step: the mean over a rank's samples,
// none if it has none. `shares` are the ranks' samples, `passes` what they
// computed.
std::vector<std::optional<double>> FakeLosses(
    const Case& c, const std::vector<std::vector<int64_t>>& shares,
    const std::vector<FakePass>& passes, TrainerMutant mutant);

// What each rank reports of the test set, with its weights, in batches of its
// size. None without weights.
std::vector<EvaluationOutput> FakeEvaluations(
    const Case& c, const CaseFiles& files,
    const std::vector<FakeTensors>& weights, TrainerMutant mutant);

// Adds to `output` the gradients of `step`, and the parameters and buffers
// after it, where the case asks for them.
void WriteFakeStep(const Case& c, const CaseFiles& files, int64_t step,
                   const FakeTensors& gradients, const FakeTensors& weights,
                   RankOutput& output);

// Ends a run that ended well as the mutant would end it, and takes away or
// damages what the ranks wrote. Does nothing for mutants of numbers.
void SpoilRun(TrainerMutant mutant, TrainerRun& run);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
