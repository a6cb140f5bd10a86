#include "models/cuda/pointwise.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

constexpr DataType kType = DataType::kFloat32;

class PointwiseTest : public GpuTest {};

// Integers, whose sums are exact in any order.
std::vector<float> Integers(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(random() % 17) - 8;
  return values;
}

TEST_F(PointwiseTest, BiasAndReluHaveTheirGradients) {
  struct Size {
    int64_t rows, channels;
  };
  // One run and many; tiles that are full, and that are not; one row.
  for (const auto& [rows, channels] :
       {Size{1, 1}, {7, 20}, {300, 33}, {1000, 64}, {2000, 5}, {40000, 3}}) {
    for (const bool relu : {true, false}) {
      for (const bool bias : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << rows << "x" << channels << " " << relu << bias);
        const std::vector<float> y = Integers(rows * channels, 1);
        std::vector<float> dy = Integers(rows * channels, 2);
        TestVector<float> device_y(y), device_dy(dy);
        TestVector<float> dbias(std::vector<float>(channels, -1));
        TestVector<float> scratch(std::vector<float>(
            BiasReluScratchBytes(rows, channels) / sizeof(float)));
        ASSERT_THAT(BiasReluBackward(
                        kType, rows, channels, relu ? device_y.data() : nullptr,
                        device_dy.data(), bias ? dbias.data() : nullptr,
                        scratch.data(), nullptr),
                    IsOk());
        std::vector<float> sums(channels, bias ? 0 : -1);
        for (size_t i = 0; i < dy.size(); ++i) {
          if (relu && y[i] <= 0) dy[i] = 0;
          if (bias) sums[i % channels] += dy[i];
        }
        EXPECT_EQ(device_dy.Read(), dy);
        EXPECT_EQ(dbias.Read(), sums);
      }
    }
  }
}

// Returns the error of Phi(x) = erfc(z) / 2, z = -x / sqrt(2), in roundings of
// its value: erfc is wrong by at most 4 units in the last place, which are 8
// roundings, and z by 2, which erfc's slope multiplies.
double PhiRoundings(double x) {
  const double z = -x / std::sqrt(2.0);
  const double slope = 2 / std::sqrt(M_PI) * std::exp(-z * z);
  return 8 + 2 * std::abs(z) * slope / std::erfc(z);
}

TEST_F(PointwiseTest, GeluAndItsGradientAreWithinTheirRoundings) {
  std::vector<float> x, dy;
  for (int i = -900; i <= 900; ++i) {
    x.push_back(static_cast<float>(i) / 90);
    dy.push_back(static_cast<float>(i % 7));
  }
  const auto count = static_cast<int64_t>(x.size());
  TestVector<float> device_x(x), y(x), dx(dy);
  ASSERT_THAT(GeluForward(kType, count, device_x.data(), y.data(), nullptr),
              IsOk());
  ASSERT_THAT(GeluBackward(kType, count, device_x.data(), dx.data(), dx.data(),
                           nullptr),
              IsOk());
  const std::vector<float> got = y.Read(), gradient = dx.Read();
  for (size_t i = 0; i < x.size(); ++i) {
    const double phi = std::erfc(-x[i] / std::sqrt(2.0)) / 2;
    const double phi_error = PhiRoundings(x[i]) * phi;
    EXPECT_NEAR(got[i], x[i] * phi,
                0x1p-24 * std::abs(x[i]) * (phi_error + phi))
        << x[i];
    // The exponential: 4 roundings, and 2 of its argument. Its two products.
    const double slope =
        x[i] * std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2 * M_PI);
    const double slope_error = std::abs(slope) * (7 + x[i] * x[i]);
    EXPECT_NEAR(gradient[i], dy[i] * (phi + slope),
                0x1p-24 * std::abs(dy[i]) *
                    (phi_error + slope_error + 2 * std::abs(phi + slope)))
        << x[i];
  }
}

TEST_F(PointwiseTest, AddsInPlace) {
  const std::vector<float> part = Integers(1000, 1);
  std::vector<float> sum = Integers(1000, 2);
  TestVector<float> device_part(part), device_sum(sum);
  ASSERT_THAT(
      AddInto(kType, 1000, device_part.data(), device_sum.data(), nullptr),
      IsOk());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  EXPECT_EQ(device_sum.Read(), sum);
}

// A fused product and difference would give other bits for about half of these
// values.
TEST_F(PointwiseTest, SgdRoundsTheProductAndTheDifference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(5000), gradients(5000);
  for (float& x : values) x = normal(random);
  for (float& x : gradients) x = normal(random);
  TestVector<float> device_values(values), device_gradients(gradients);
  TestVector<float> rate(std::vector<float>{0.3f});
  ASSERT_THAT(SgdUpdateOnGpu(5000, device_values.data(),
                             device_gradients.data(), rate.data(),
                             /*scale=*/nullptr, nullptr),
              IsOk());
  for (size_t i = 0; i < values.size(); ++i) {
    const volatile float product = 0.3f * gradients[i];
    values[i] -= product;
  }
  EXPECT_EQ(device_values.Read(), values);
}

}  // namespace
}  // namespace lockstep
