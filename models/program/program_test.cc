// Tests of Program with plans of one multiplication each, whose results are
// known.
#include "models/program/program.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/operation_times.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBatch = 3;
constexpr int64_t kFeatures = 2;
constexpr int64_t kSize = kBatch * kFeatures;

// y = factor * x + second. Announces parameter `index`.
class FakePlan : public OperationPlan {
 public:
  FakePlan(int index, float factor, bool has_second)
      : index_(index), factor_(factor) {
    // The same permissions as batch norm with a shortcut, or without one.
    dsecond_may_share_dy = has_second;
    dx_may_share_dy = !has_second;
    saved_bytes = scratch_bytes = kSize * 4;
  }

  absl::Status Forward(const ForwardBuffers& at) override {
    const auto* const x = static_cast<const float*>(at.x);
    const auto* const second = static_cast<const float*>(at.second);
    auto* const y = static_cast<float*>(at.y);
    for (int64_t i = 0; i < kSize; ++i) {
      static_cast<float*>(at.scratch)[i] = -1;
      y[i] = factor_ * x[i] + (second == nullptr ? 0 : second[i]);
      static_cast<float*>(at.saved)[i] = x[i];
    }
    return status;
  }

  absl::Status Backward(const BackwardBuffers& at,
                        Model::GradientReady ready) override {
    ready(index_);
    const auto* const x = static_cast<const float*>(at.x);
    auto* const dy = static_cast<float*>(at.dy);
    gradient.assign(dy, dy + kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(static_cast<float*>(at.saved)[i], x[i]);
      static_cast<float*>(at.scratch)[i] = -1;
      if (at.dx != nullptr) static_cast<float*>(at.dx)[i] = factor_ * dy[i];
      if (at.dsecond != nullptr) static_cast<float*>(at.dsecond)[i] = dy[i];
    }
    return status;
  }

  absl::Status status;
  std::vector<float> gradient;  // The last gradient of y.

 private:
  const int index_;
  const float factor_;
};

// a = 2 x, b = 3 a, c = 5 b + a, d = 7 c + b.
Network Described() {
  Network network("fake", {.c = kFeatures});
  const Value a = network.Linear("a", network.input(), {.out = kFeatures});
  const Value b = network.Linear("b", a, {.out = kFeatures});
  const Value c = network.Add("c", b, a, 0);
  network.Add("d", c, b, 0);
  return network;
}

class ProgramTest : public testing::TestWithParam<bool> {
 protected:
  ProgramTest() {
    std::vector<std::unique_ptr<OperationPlan>> plans;
    constexpr float kFactors[] = {2, 3, 5, 7};
    for (int i = 0; i < 4; ++i) {
      auto plan = std::make_unique<FakePlan>(i, kFactors[i], i >= 2);
      plans_.push_back(plan.get());
      plans.push_back(std::move(plan));
    }
    const auto add = [this](int value, void* gradient, const void* part) {
      added_.push_back(value);
      for (int64_t i = 0; i < kSize; ++i) {
        static_cast<float*>(gradient)[i] += static_cast<const float*>(part)[i];
      }
      return absl::OkStatus();
    };
    program_.emplace(network_, std::move(plans), kBatch, 4, GetParam(), add);
  }

  Program::Operands Operands(bool training) {
    memory_ = AlignedBuffer(program_->bytes(training) / 4);
    for (float& x : memory_.span()) x = -100;
    return {.memory = memory_.data(), .input = input_, .batch = &batch_};
  }

  const float input_[kSize] = {1, 2, 3, 4, 5, 6};
  const Batch batch_;
  const Network network_ = Described();
  std::vector<FakePlan*> plans_;
  std::vector<int> added_;  // The values whose gradients were summed.
  AlignedBuffer memory_;
  std::optional<Program> program_;
};

INSTANTIATE_TEST_SUITE_P(SharedMemory, ProgramTest, testing::Bool());

TEST_P(ProgramTest, ForwardFollowsTheNetwork) {
  for (const bool training : {true, false}) {
    const Program::Operands operands = Operands(training);
    ASSERT_THAT(program_->Forward(operands, training), IsOk());
    const auto* const y =
        static_cast<float*>(program_->output(operands.memory, training));
    for (int64_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(y[i], 2 * (7 * 16 + 3) * input_[i]);
    }
  }
}

// The gradients of a and of b have two parts each.
TEST_P(ProgramTest, BackwardSumsTheGradientsOfAllUsers) {
  const Program::Operands operands = Operands(true);
  ASSERT_THAT(program_->Forward(operands, true), IsOk());
  auto* const dy =
      static_cast<float*>(program_->output_gradient(operands.memory));
  for (int64_t i = 0; i < kSize; ++i) dy[i] = static_cast<float>(i + 1);
  std::vector<int> ready;
  OperationTimes times = {.forward_seconds = std::vector<double>(4),
                          .backward_seconds = std::vector<double>(4)};
  ASSERT_THAT(program_->Backward(
                  operands, [&](int index) { ready.push_back(index); }, &times),
              IsOk());
  EXPECT_THAT(ready, ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(added_, ElementsAre(2, 1));
  EXPECT_THAT(times.backward_seconds, Each(testing::Gt(0)));
  EXPECT_THAT(times.forward_seconds, Each(0));
  for (int64_t i = 0; i < kSize; ++i) {
    const auto d = static_cast<float>(i + 1);
    EXPECT_EQ(plans_[2]->gradient[i], 7 * d);
    EXPECT_EQ(plans_[1]->gradient[i], 5 * 7 * d + d);
    EXPECT_EQ(plans_[0]->gradient[i], 3 * 36 * d + 7 * d);
  }
}

TEST_P(ProgramTest, EndsAtTheFirstError) {
  const Program::Operands operands = Operands(true);
  ASSERT_THAT(program_->Forward(operands, true), IsOk());
  plans_[1]->status = absl::InternalError("planted");
  std::vector<int> ready;
  EXPECT_FALSE(
      program_->Backward(operands, [&](int index) { ready.push_back(index); })
          .ok());
  EXPECT_THAT(ready, ElementsAre(3, 2, 1));
  EXPECT_THAT(program_->Forward(operands, true),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("planted")));
}

}  // namespace
}  // namespace lockstep
