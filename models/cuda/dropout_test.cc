#include "models/cuda/dropout.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cpu/pointwise.h"
#include "models/cuda/step_numbers.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "models/program/random_mask.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

std::vector<float> Normal(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = normal(random);
  return values;
}

// Sample numbers that differ from the positions.
std::vector<int64_t> Numbers(int64_t n) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(1000 - 3 * i);
  return numbers;
}

struct Size {
  int64_t n, size;
};
// The second size needs more blocks, the third more samples than a grid has.
constexpr Size kSizes[] = {{1, 1}, {3, 20000}, {600, 3}, {4, 0}, {0, 4}};

constexpr DataType kType = DataType::kFloat32;

class DropoutTest : public GpuTest {};

TEST_F(DropoutTest, DropsWhatTheHostDrops) {
  for (const auto& [n, size] : kSizes) {
    for (const double rate : {0.0, 0.25, 0.9}) {
      for (const bool numbered : {true, false}) {
        SCOPED_TRACE(testing::Message() << n << "x" << size << " " << rate);
        const std::vector<float> from = Normal(n * size, 1);
        const std::vector<int64_t> numbers = Numbers(n);
        Batch batch = {.images = {}, .labels = {}, .seed = 5, .step = 7};
        if (numbered) batch.samples = numbers;
        std::vector<float> want(from.size());
        DropOut(batch, /*layer=*/2, rate, DataType::kFloat32, n, size,
                from.data(), want.data());
        TestVector<int64_t> device_numbers(numbers);
        TestVector<StepNumbers> step_numbers(
            std::vector<StepNumbers>{{.seed = 5, .step = 7}});
        TestVector<float> memory(from);
        ASSERT_THAT(DropOutOnGpu(
                        {{.samples = numbered ? device_numbers.data() : nullptr,
                          .layer = 2,
                          .rate = rate},
                         step_numbers.data()},
                        kType, n, size, memory.data(), memory.data(), nullptr),
                    IsOk());
        EXPECT_EQ(memory.Read(), want);
      }
    }
  }
}

TEST_F(DropoutTest, BranchesAreDroppedBySample) {
  for (const auto& [n, size] : kSizes) {
    for (const double rate : {0.0, 0.5}) {
      SCOPED_TRACE(testing::Message() << n << "x" << size << " " << rate);
      const std::vector<float> x = Normal(n * size, 1);
      const std::vector<float> branch = Normal(n * size, 2);
      const MaskKey key = {.seed = 1, .step = 2, .layer = 3, .rate = rate};
      // 1 / (1 - rate) is a power of two, so that a fused product and sum has
      // the same bits.
      std::vector<float> sum(x), dbranch(x);
      for (size_t i = 0; i < x.size(); ++i) {
        const RandomMask mask(key, static_cast<int64_t>(i) / size);
        const float factor = mask.Keeps(0) ? mask.scale() : 0;
        sum[i] = x[i] + factor * branch[i];
        dbranch[i] = factor * x[i];
      }
      TestVector<float> device_x(x), device_branch(branch), y(x), dx(branch);
      ASSERT_THAT(AddBranch({key}, kType, n, size, device_x.data(),
                            device_branch.data(), y.data(), nullptr),
                  IsOk());
      EXPECT_EQ(y.Read(), sum);
      ASSERT_THAT(AddBranchBackward({key}, kType, n, size, device_x.data(),
                                    dx.data(), device_branch.data(), nullptr),
                  IsOk());
      EXPECT_EQ(dx.Read(), x);
      EXPECT_EQ(device_branch.Read(), dbranch);
      ASSERT_THAT(AddBranchBackward({key}, kType, n, size, device_x.data(),
                                    device_x.data(), y.data(), nullptr),
                  IsOk());
      EXPECT_EQ(device_x.Read(), x);
      EXPECT_EQ(y.Read(), dbranch);
    }
  }
}

}  // namespace
}  // namespace lockstep
