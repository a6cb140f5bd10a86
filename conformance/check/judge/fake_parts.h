// The parts of the fake trainer (judge_mutants.h): a model of some sixty
// parameters in plain loops, and which samples the ranks take.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <valarray>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge_mutants.h"
#include "conformance/protocol/case.h"

namespace lockstep {

using FakeValues = std::valarray<float>;
using FakeTensors = std::map<std::string, FakeValues>;
using Indices = std::vector<int64_t>;

struct FakeBatch {
  std::vector<FakeValues> x;  // By sample.
  std::vector<size_t> y;
};

// The samples `indices` of "train" or "test".
FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     const Indices& indices);

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

// Whether it is a buffer of the model, by its name.
bool IsFakeBuffer(const std::string& name);

struct FakeStep {
  int64_t epoch = 0;
  std::vector<Indices> shares;  // By rank.
};

// All steps of a run on `size` samples, of both starts where there are two.
std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   const std::string& mutant);

// The test samples of each rank: every N-th.
std::vector<Indices> FakeTestShares(size_t world_size, int64_t size,
                                    const std::string& mutant);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
