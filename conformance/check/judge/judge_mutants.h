// The mutants that Judge must reject and name. Each is planted in a fake
// trainer, whose ranks do not really run: it gives what the processes of a
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

// All runs of a FakeCase, joined where a plan has two starts, and
// extra runs, by the trainer with that mutant: a JudgeMutant's name; "" for the
// right trainer. Beside those that are named it knows "loses_a_sample",
// "rounded_loss", "other_buffers_on_last_rank", "first_rank_evaluates_all_too"
// and "truncated_accuracy", and one that is right: "first_rank_evaluates_all".
// A mutant shows at every world size where it makes sense, as in a real
// trainer.
CaseRuns FakeRuns(const CheckCase& check, const std::string& mutant);
RunExtra FakeExtraRuns(const std::string& mutant);

struct JudgeMutant {
  const char* name;
  const char* planted;             // What is wrong, in a phrase.
  Cause cause;                     // The only one to be named.
  const char* case_name = "even";  // The built-in case that is there for it.
  Claim claim = Claim::kRun;       // The one that must fail.
};

std::vector<JudgeMutant> AllJudgeMutants();

// The same as a suite of the folder "check", whose checks are the claims.
MutantSuite JudgeMutants();

// The built-in case of that name, with the fake trainer's model and data in
// place of LeNet and images; lives for ever. Cheap but for the first of its
// world size.
const CheckCase& FakeCase(const std::string& name, int world_size);

// The verdicts on the mutant; `check` is a FakeCase.
std::vector<Verdict> JudgeTrainer(const std::string& mutant,
                                  const CheckCase& check);

// The parts of the fake trainer: a model of some sixty parameters in plain
// loops, and which samples the ranks take.

using FakeValues = std::valarray<float>;
using FakeTensors = std::map<std::string, FakeValues>;
using FakeIndices = std::vector<int64_t>;

struct FakeBatch {
  std::vector<FakeValues> x;  // By sample.
  std::vector<size_t> y;
};

// The samples `indices` of "train" or "test".
FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     const FakeIndices& indices);

// What one pass gives. Gradients are those of the mean loss.
struct FakePass {
  FakeTensors gradients;
  std::vector<float> losses;  // By sample.
  double right = 0;           // Samples.
  FakeValues mean, variance;  // Of the batch; variance unbiased.
};

// softmax cross-entropy of tanh(norm(x W1 + b1)) W2 + b2 on a batch that is not
// empty, with the case's batch norm "bn" or none. Smooth, so that rounding
// stays rounding. Sums run over the samples in their order, in float32.
FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const Case& c, bool training);

// The case with this model and its data; everything else as it is.
CheckCase WithFakeModel(CheckCase check);

// Whether it is a buffer of the model, by its name.
bool IsFakeBuffer(const std::string& name);

struct FakeStep {
  int64_t epoch = 0;
  std::vector<FakeIndices> shares;  // By rank.
};

// All steps of a run on `size` samples, of both starts where there are two.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   const std::string& mutant);

// The test samples of each rank: every N-th.
std::vector<FakeIndices> FakeTestShares(size_t world_size, int64_t size,
                                        const std::string& mutant);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
