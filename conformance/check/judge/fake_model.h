// The model of the fake trainer: some sixty parameters, computed in plain
// loops.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_MODEL_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"

namespace lockstep {

inline constexpr size_t kFakeInputs = 4;
inline constexpr size_t kFakeHidden = 6;
inline constexpr size_t kFakeClasses = 3;

using FakeTensors = std::map<std::string, std::vector<float>>;

struct FakeBatch {
  std::vector<std::array<float, kFakeInputs>> x;
  std::vector<int64_t> y;  // In [0, kFakeClasses).
};

struct FakeMode {
  bool batch_norm = false;
  bool training = true;   // Else batch norm takes the running statistics.
  bool bfloat16 = false;  // What is computed is rounded to it.
};

// Whether it is a buffer of the model, by its name.
bool IsFakeBuffer(const std::string& name);

// What one pass gives, in the order of the batch's samples. Gradients are those
// of the mean loss.
struct FakePass {
  FakeTensors gradients;
  std::vector<float> losses;
  std::vector<bool> correct;
  std::vector<float> mean, variance;  // Of the batch; variance unbiased.
};

// softmax cross-entropy of tanh(norm(x W1 + b1)) W2 + b2, with batch norm "bn"
// or none. Smooth, so that rounding stays rounding. Sums run over the samples
// in their order, in float32.
FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const FakeMode& mode);

// The samples `indices` of "train" or "test".
FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     std::span<const int64_t> indices);

// The case with this model and data of its own in place of LeNet and images;
// everything else as it is.
CheckCase WithFakeModel(CheckCase check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_MODEL_H_
