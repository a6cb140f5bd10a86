#include "models/cuda/layer_norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

constexpr double kRounding = 0x1p-24;

// Rows whose statistics are exact in float32: half of the values lie one
// deviation above the mean, the others below. Weights and gradients are small
// integers.
struct Rows {
  Rows(int64_t rows, int64_t channels)
      : shape{.rows = rows, .channels = channels, .epsilon = 0} {
    std::mt19937 random(3);
    const auto integer = [&] { return static_cast<float>(random() % 9) - 4; };
    for (int64_t row = 0; row < rows; ++row) {
      mean.push_back(integer());
      deviation.push_back(std::ldexp(1.0f, static_cast<int>(random() % 5) - 2));
      for (int64_t c = 0; c < channels; ++c) {
        z.push_back((c + row) % 2 == 0 ? 1.0f : -1.0f);
        x.push_back(mean.back() + z.back() * deviation.back());
        dy.push_back(integer());
      }
    }
    for (int64_t c = 0; c < channels; ++c) {
      weight.push_back(integer());
      bias.push_back(integer());
    }
  }

  LayerNormShape shape;
  std::vector<float> mean, deviation;  // By row.
  std::vector<float> z, x, dy;         // [rows, channels].
  std::vector<float> weight, bias;
};

// Rows shorter and longer than a block; one run of rows, and several.
std::vector<Rows> AllRows() {
  return {{1, 2}, {3, 64}, {5, 192}, {515, 34}, {2, 1000}};
}

class LayerNormTest : public GpuTest {
 protected:
  // Computes y and leaves the statistics for the backward pass.
  std::vector<float> Forward(const Rows& in, TestVector<RowStatistics>& rows) {
    TestVector<float> x(in.x), weight(in.weight), bias(in.bias), y(in.dy);
    EXPECT_THAT(LayerNormForward(in.shape, x.data(), weight.data(), bias.data(),
                                 y.data(), rows.data(), nullptr),
                IsOk());
    return y.Read();
  }
  static std::vector<RowStatistics> NoStatistics(const Rows& in) {
    return std::vector<RowStatistics>(in.mean.size());
  }
};

TEST_F(LayerNormTest, NormalisesEachRow) {
  for (const Rows& in : AllRows()) {
    TestVector<RowStatistics> statistics(NoStatistics(in));
    const std::vector<float> y = Forward(in, statistics);
    const auto channels = static_cast<size_t>(in.shape.channels);
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t c = i % channels;
      ASSERT_EQ(y[i], in.z[i] * in.weight[c] + in.bias[c]) << i;
    }
    const std::vector<RowStatistics> rows = statistics.Read();
    for (size_t row = 0; row < rows.size(); ++row) {
      EXPECT_EQ(rows[row].mean, in.mean[row]);
      EXPECT_EQ(rows[row].inverse_deviation, 1 / in.deviation[row]);
    }
  }
}

TEST_F(LayerNormTest, EpsilonIsAddedToTheVariance) {
  Rows in(2, 4);
  in.shape.epsilon = 3 * in.deviation[0] * in.deviation[0];
  TestVector<RowStatistics> statistics(NoStatistics(in));
  Forward(in, statistics);
  EXPECT_EQ(statistics.Read()[0].inverse_deviation, 0.5f / in.deviation[0]);
}

TEST_F(LayerNormTest, ParametersGradientsAreExactSums) {
  for (const Rows& in : AllRows()) {
    TestVector<RowStatistics> statistics(NoStatistics(in));
    Forward(in, statistics);
    const auto channels = static_cast<size_t>(in.shape.channels);
    std::vector<float> dweight(channels), dbias(channels);
    for (size_t i = 0; i < in.dy.size(); ++i) {
      dweight[i % channels] += in.dy[i] * in.z[i];
      dbias[i % channels] += in.dy[i];
    }
    TestVector<float> x(in.x), dy(in.dy), device_dweight(in.weight),
        device_dbias(in.weight);
    TestVector<float> scratch(std::vector<float>(
        static_cast<size_t>(LayerNormScratchBytes(in.shape)) / sizeof(float)));
    ASSERT_THAT(LayerNormBackwardParameters(
                    in.shape, x.data(), statistics.data(), dy.data(),
                    device_dweight.data(), device_dbias.data(), scratch.data(),
                    nullptr),
                IsOk());
    EXPECT_EQ(device_dweight.Read(), dweight);
    EXPECT_EQ(device_dbias.Read(), dbias);
  }
}

// All sums are exact. The two divisions, the product, the two differences and
// the last product each round once.
TEST_F(LayerNormTest, InputsGradientIsTheDerivative) {
  for (const Rows& in : AllRows()) {
    TestVector<RowStatistics> statistics(NoStatistics(in));
    Forward(in, statistics);
    TestVector<float> x(in.x), weight(in.weight), dx(in.dy);
    ASSERT_THAT(LayerNormBackwardInput(in.shape, x.data(), weight.data(),
                                       statistics.data(), dx.data(), dx.data(),
                                       nullptr),
                IsOk());
    const std::vector<float> got = dx.Read();
    const auto channels = static_cast<size_t>(in.shape.channels);
    const auto count = static_cast<double>(channels);
    for (size_t row = 0; row < in.mean.size(); ++row) {
      double sum = 0, dot = 0;
      for (size_t c = 0; c < channels; ++c) {
        const size_t i = row * channels + c;
        sum += double{in.dy[i]} * in.weight[c];
        dot += double{in.dy[i]} * in.weight[c] * in.z[i];
      }
      for (size_t c = 0; c < channels; ++c) {
        const size_t i = row * channels + c;
        const double g = double{in.dy[i]} * in.weight[c];
        const double want =
            (g - sum / count - in.z[i] * dot / count) / in.deviation[row];
        const double magnitude =
            (std::abs(g) + std::abs(sum / count) + std::abs(dot / count)) /
            in.deviation[row];
        ASSERT_NEAR(got[i], want, 6 * kRounding * magnitude) << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
