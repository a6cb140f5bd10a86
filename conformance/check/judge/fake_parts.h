// The parts of the fake trainer: a model of about sixty parameters in plain
// loops, and the choice of the ranks' samples.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <valarray>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"

namespace lockstep::conformance {

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
// their order, in float32. local_sizes: if not empty, batch norm's backward
// pass sums over consecutive parts of the batch with these sizes, and not over
// the batch.
FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const Case& c, bool training,
                      const std::vector<size_t>& local_sizes = {});

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

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_PARTS_H_
