// The mutants that Judge must reject and name. Each is planted in a fake
// trainer. The fake trainer starts no ranks: it returns what the processes of a
// judged trainer would have written.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <valarray>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/mutant.h"
#include "conformance/protocol/case.h"

namespace lockstep::conformance {

// Return all runs, or the extra runs, of a FakeCase by the trainer with a
// mutant. If a plan has two starts, the runs are joined.
//
// mutant: a JudgeMutant's name; "" for the right trainer. The trainer also
// knows the wrong variants "loses_a_sample", "rounded_loss",
// "other_buffers_on_last_rank", "first_rank_evaluates_all_too" and
// "truncated_accuracy", and the right variant "first_rank_evaluates_all".
//
// As in a real trainer, a mutant shows at every world size at which it makes
// sense.
CaseRuns FakeRuns(const CheckCase& check, const std::string& mutant);
RunExtra FakeExtraRuns(const std::string& mutant);

struct JudgeMutant {
  const char* name;
  const char* planted;             // The mistake, in a phrase.
  Cause cause;                     // The only cause to be named.
  const char* case_name = "even";  // The built-in case that is made for it.
  Claim claim = Claim::kRun;       // The claim that must fail.
};

std::vector<JudgeMutant> AllJudgeMutants();

// Returns the same mutants as a suite of the folder "check". The suite's checks
// are the claims.
MutantSuite JudgeMutants();

// Returns the built-in case of that name, with the fake trainer's model and
// data in place of LeNet and images. The case is never destroyed. Cost: the
// first call for a world size makes all of its cases; later calls are cheap.
const CheckCase& FakeCase(const std::string& name, int world_size);

// Returns the verdicts on the mutant; `check` is a FakeCase.
std::vector<Verdict> JudgeTrainer(const std::string& mutant,
                                  const CheckCase& check);

// The parts of the fake trainer: a model of about sixty parameters in plain
// loops, and the choice of the ranks' samples.

using FakeValues = std::valarray<float>;
using FakeTensors = std::map<std::string, FakeValues>;
using FakeIndices = std::vector<int64_t>;

struct FakeBatch {
  std::vector<FakeValues> x;  // By sample.
  std::vector<size_t> y;
};

// Returns the samples `indices` of "train" or "test".
FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     const FakeIndices& indices);

// The result of one pass. Gradients are those of the mean loss.
struct FakePass {
  FakeTensors gradients;
  std::vector<float> losses;  // By sample.
  double right = 0;           // The number of right answers.
  FakeValues mean, variance;  // Of the batch; variance unbiased.
};

// Runs softmax cross-entropy of tanh(norm(x W1 + b1)) W2 + b2 on a batch that
// is not empty. norm is the case's batch norm "bn", or none. The model is
// smooth, so rounding differences stay small. Sums run over the samples in
// their order, in float32.
FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const Case& c, bool training);

// Returns the case with the fake trainer's model and data; all other settings
// are kept.
CheckCase WithFakeModel(CheckCase check);

// Returns whether a tensor is a buffer of the model, by its name.
bool IsFakeBuffer(const std::string& name);

struct FakeStep {
  int64_t epoch = 0;
  std::vector<FakeIndices> shares;  // By rank.
};

// Returns all steps of a run on `size` samples; if the plan has two starts, the
// steps of both.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   const std::string& mutant);

// Returns the test samples of each rank: every N-th sample.
std::vector<FakeIndices> FakeTestShares(size_t world_size, int64_t size,
                                        const std::string& mutant);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
