#include "models/cuda/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

std::vector<float> Integers(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) x = static_cast<float>(random() % 17) - 8;
  return values;
}

constexpr DataType kType = DataType::kFloat32;

class SoftmaxTest : public GpuTest {};

// The differences to the highest value are exact. An exponential is wrong by at
// most 2 units in the last place, which are 4 roundings, above and below the
// line; each sum of `columns` terms adds `columns` roundings, and the quotient
// one.
TEST_F(SoftmaxTest, RowsAreTheSoftmax) {
  for (const int64_t columns : {1, 5, 128, 197, 300}) {
    constexpr int64_t kRows = 7;
    const std::vector<float> x = Integers(kRows * columns, 1);
    TestVector<float> p(x);
    ASSERT_THAT(
        SoftmaxForward(kType, kRows, columns, p.data(), p.data(), nullptr),
        IsOk());
    const std::vector<float> got = p.Read();
    for (int64_t row = 0; row < kRows; ++row) {
      const float* const in = x.data() + row * columns;
      const double highest = *std::max_element(in, in + columns);
      double sum = 0;
      for (int64_t i = 0; i < columns; ++i) sum += std::exp(in[i] - highest);
      const double roundings = 9 + static_cast<double>(columns);
      for (int64_t i = 0; i < columns; ++i) {
        const double want = std::exp(in[i] - highest) / sum;
        ASSERT_NEAR(got[static_cast<size_t>(row * columns + i)], want,
                    roundings * 0x1p-24 * want)
            << row << " " << i;
      }
    }
  }
}

TEST_F(SoftmaxTest, ANanStaysInItsRow) {
  std::vector<float> x = Integers(3 * 200, 1);
  x[299] = std::numeric_limits<float>::quiet_NaN();
  TestVector<float> p(x);
  ASSERT_THAT(SoftmaxForward(kType, 3, 200, p.data(), p.data(), nullptr),
              IsOk());
  const std::vector<float> got = p.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), i / 200 == 1) << i;
  }
}

// p has four bits after the point, so that all products and sums are exact.
TEST_F(SoftmaxTest, TheGradientIsExact) {
  for (const int64_t columns : {1, 5, 197}) {
    constexpr int64_t kRows = 6;
    std::vector<float> p = Integers(kRows * columns, 1);
    for (float& x : p) x = std::abs(x) / 16;
    std::vector<float> want = Integers(kRows * columns, 2);
    TestVector<float> device_p(p), dp(want);
    ASSERT_THAT(SoftmaxBackward(kType, kRows, columns, device_p.data(),
                                dp.data(), dp.data(), nullptr),
                IsOk());
    for (size_t row = 0; row < kRows; ++row) {
      const size_t begin = row * static_cast<size_t>(columns);
      const size_t end = begin + static_cast<size_t>(columns);
      float dot = 0;
      for (size_t i = begin; i < end; ++i) dot += p[i] * want[i];
      for (size_t i = begin; i < end; ++i) want[i] = p[i] * (want[i] - dot);
    }
    EXPECT_EQ(dp.Read(), want);
  }
}

}  // namespace
}  // namespace lockstep
