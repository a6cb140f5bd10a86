// The optimizers' steps on a GPU have the bits of those on the CPU.
#include "models/cuda/optimizer.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/test_vector.h"
#include "models/optimizer.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

constexpr OptimizerKind kAdamW = OptimizerKind::kAdamW;
const OptimizerOptions kOptions[] = {{.weight_decay = 0.01},
                                     {.momentum = 0.9},
                                     {.momentum = 0.9, .weight_decay = 0.01},
                                     {.kind = kAdamW},
                                     {.kind = kAdamW, .weight_decay = 0.1},
                                     {.kind = kAdamW,
                                      .weight_decay = 0.3,
                                      .beta1 = 0.5,
                                      .beta2 = 0.75,
                                      .epsilon = 1e-3}};

// Returns made-up values, of which some are 0 or very small.
std::vector<float> Numbers(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  for (size_t i = 0; i < count; i += 7) values[i] *= i % 2 == 0 ? 0 : 1e-30f;
  return values;
}

// An optimizer on the device, and its gradients.
class OnDevice {
 public:
  OnDevice(const OptimizerOptions& options, const std::vector<float>& values)
      : options_(options),
        size_(values.size()),
        values_(values),
        gradients_(values),
        first_(std::vector<float>(size_)),
        second_(std::vector<float>(size_)),
        rate_(std::vector<float>{0}),
        step_(std::vector<DeviceOptimizerStep>{{}}) {}

  void Step(const std::vector<float>& gradients, float rate,
            const LossScale* scale) {
    const size_t arrays = StateNames(options_).size();
    gradients_.Write(gradients);
    rate_.Write({rate});
    ASSERT_THAT(BeginOptimizerStep(options_, rate_.data(), scale, step_.data(),
                                   nullptr),
                IsOk());
    ASSERT_THAT(UpdateOnGpu(options_.kind,
                            {.count = static_cast<int64_t>(size_),
                             .values = values_.data(),
                             .gradients = gradients_.data(),
                             .first = arrays > 0 ? first_.data() : nullptr,
                             .second = arrays > 1 ? second_.data() : nullptr},
                            step_.data(), scale, nullptr),
                IsOk());
  }

  std::vector<float> values() { return values_.Read(); }

  OptimizerState state() {
    OptimizerState state = {.steps = step_.Read()[0].steps, .arrays = {}};
    const size_t arrays = StateNames(options_).size();
    if (arrays > 0) state.arrays.push_back(first_.Read());
    if (arrays > 1) state.arrays.push_back(second_.Read());
    return state;
  }

 private:
  const OptimizerOptions options_;
  const size_t size_;
  TestVector<float> values_, gradients_, first_, second_, rate_;
  TestVector<DeviceOptimizerStep> step_;
};

class CudaOptimizerTest : public GpuTest {};

// Few elements, and more than a grid has threads.
TEST_F(CudaOptimizerTest, HasTheCpusBits) {
  for (const OptimizerOptions& options : kOptions) {
    for (const size_t count : {size_t{1}, size_t{300}, size_t{1'100'000}}) {
      SCOPED_TRACE(testing::Message() << Name(options.kind) << " " << count);
      std::vector<float> values = Numbers(count, 1);
      Optimizer cpu(options, static_cast<int64_t>(count));
      OnDevice gpu(options, values);
      const int steps = count > 1000 ? 2 : 20;
      for (int step = 0; step < steps; ++step) {
        const std::vector<float> gradients = Numbers(count, 10 + step);
        const float rate = 0.1f / static_cast<float>(1 + step);
        cpu.BeginStep(rate);
        cpu.Update(0, values, gradients);
        gpu.Step(gradients, rate, nullptr);
      }
      EXPECT_EQ(gpu.values(), values);
      EXPECT_EQ(gpu.state(), cpu.state());
    }
  }
}

TEST_F(CudaOptimizerTest, ASkippedStepChangesNeitherValuesNorState) {
  TestVector<LossScale> good(std::vector<LossScale>{{}});
  TestVector<LossScale> bad(std::vector<LossScale>{{.overflows = 1}});
  for (const OptimizerOptions& options : kOptions) {
    const std::vector<float> first = Numbers(300, 1);
    OnDevice gpu(options, first);
    gpu.Step(first, 0.1f, good.data());
    const std::vector<float> values = gpu.values();
    const OptimizerState state = gpu.state();
    EXPECT_NE(values, first);
    EXPECT_EQ(state.steps, StateNames(options).empty() ? 0 : 1);
    gpu.Step(first, 0.1f, bad.data());
    EXPECT_EQ(gpu.values(), values);
    EXPECT_EQ(gpu.state(), state);
    gpu.Step(first, 0.1f, good.data());
    EXPECT_NE(gpu.values(), values);
  }
}

}  // namespace
}  // namespace lockstep
