// Which samples the fake trainer's ranks take in which step.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_

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

struct FakeStep {
  int64_t epoch = 0;
  std::vector<std::vector<int64_t>> shares;  // By rank.
};

// All steps of a run on `size` samples, of both starts where there are two.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   FakeFault fault);

// The test samples of each rank: every N-th.
std::vector<std::vector<int64_t>> FakeTestShares(int world_size, int64_t size,
                                                 FakeFault fault);

// What ranks of a made-up trainer report as the loss of a step, with the
// mistakes put in.

// By rank: the mean over its samples, none if it has none. `shares` are the
// ranks' samples, `passes` what they computed.
std::vector<std::optional<double>> FakeLosses(
    const Case& c, const std::vector<std::vector<int64_t>>& shares,
    const std::vector<FakePass>& passes, FakeFault fault);

// The fake trainer's evaluation.

// What each rank reports of the test set, with its weights, in batches of its
// size. None without weights.
std::vector<EvaluationOutput> FakeEvaluations(
    const Case& c, const CaseFiles& files,
    const std::vector<FakeTensors>& weights, FakeFault fault);

// What a rank of the made-up trainer writes of a step.

// Adds to `output` the gradients of `step`, and the parameters and buffers
// after it, where the case asks for them.
void WriteFakeStep(const Case& c, const CaseFiles& files, int64_t step,
                   const FakeTensors& gradients, const FakeTensors& weights,
                   RankOutput& output);

// What can go wrong with a run besides its numbers.

// Makes of a run that ended well what it would be with the fault; leaves it as
// it is where the fault is another kind of mistake.
void SpoilRun(FakeFault fault, TrainerRun& run);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
