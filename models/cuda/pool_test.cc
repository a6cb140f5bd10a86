#include "models/cuda/pool.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;

class PoolTest : public GpuTest {};

int64_t Index(const Shape& shape, int64_t n, int64_t h, int64_t w, int64_t c) {
  return ((n * shape.h + h) * shape.w + w) * shape.c + c;
}

// Calls visit(x index, y index) for each element of each window.
template <typename Visit>
void ForEachPair(const PoolShape& s, const Visit& visit) {
  for (int64_t n = 0; n < s.y.n; ++n) {
    for (int64_t h = 0; h < s.y.h; ++h) {
      for (int64_t w = 0; w < s.y.w; ++w) {
        for (int64_t r = 0; r < s.kernel_h; ++r) {
          for (int64_t k = 0; k < s.kernel_w; ++k) {
            const int64_t row = h * s.stride_h + r - s.padding;
            const int64_t column = w * s.stride_w + k - s.padding;
            if (row < 0 || row >= s.x.h || column < 0 || column >= s.x.w) {
              continue;
            }
            for (int64_t c = 0; c < s.x.c; ++c) {
              visit(Index(s.x, n, row, column, c), Index(s.y, n, h, w, c));
            }
          }
        }
      }
    }
  }
}

PoolShape Windows(const Shape& x, bool maximum, int64_t kernel, int64_t stride,
                  int64_t padding) {
  Shape y = x;
  y.h = (x.h + 2 * padding - kernel) / stride + 1;
  y.w = (x.w + 2 * padding - kernel) / stride + 1;
  return {x, y, maximum, kernel, kernel, stride, stride, padding};
}

std::vector<PoolShape> Shapes() {
  const Shape x = {.n = 2, .c = 3, .h = 9, .w = 8};
  Shape pixel = x;
  pixel.h = pixel.w = 1;
  return {Windows(x, false, 2, 2, 0), Windows(x, false, 3, 1, 0),
          Windows(x, false, 2, 3, 0), Windows(x, true, 3, 2, 1),
          Windows(x, true, 2, 2, 0),  Windows(x, true, 3, 1, 1),
          {x, pixel, false, x.h, x.w}};
}

// Small integers in an order that repeats values, so that windows have ties.
// The kernels' sums are exact.
std::vector<float> Values(int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>((i * 29 + i / 7 * 3) % 13 - 6);
  }
  return values;
}

TEST_F(PoolTest, ForwardAndBackwardFollowTheDefinition) {
  for (const PoolShape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message() << shape.maximum << " " << shape.kernel_h
                                    << "/" << shape.stride_h);
    const std::vector<float> x = Values(shape.x.size());
    const std::vector<float> dy = Values(shape.y.size());
    const float scale =
        1.0f / static_cast<float>(shape.kernel_h * shape.kernel_w);
    std::vector<float> y(dy.size(), shape.maximum ? -100.0f : 0.0f);
    std::vector<int64_t> winners(dy.size());
    std::vector<float> dx(x.size());
    ForEachPair(shape, [&](int64_t from, int64_t to) {
      if (!shape.maximum) {
        y[to] += x[from];
        dx[from] += dy[to];
      } else if (x[from] > y[to]) {
        y[to] = x[from];
        winners[to] = from;
      }
    });
    for (size_t i = 0; i < dy.size(); ++i) {
      if (shape.maximum) dx[winners[i]] += dy[i];
      if (!shape.maximum) y[i] *= scale;
    }
    if (!shape.maximum) {
      for (float& value : dx) value *= scale;
    }
    TestVector<float> device_x(x), device_y(std::vector<float>(y.size()));
    TestVector<float> device_dy(dy), device_dx(std::vector<float>(x.size()));
    TestVector<uint8_t> device_winners(std::vector<uint8_t>(y.size()));
    ASSERT_THAT(PoolForward(shape, device_x.data(), device_y.data(),
                            device_winners.data(), nullptr),
                IsOk());
    EXPECT_EQ(device_y.Read(), y);
    ASSERT_THAT(PoolBackward(shape, device_dy.data(), device_winners.data(),
                             device_dx.data(), nullptr),
                IsOk());
    EXPECT_EQ(device_dx.Read(), dx);
  }
}

TEST_F(PoolTest, AMaximumKeepsNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Shape x = {.n = 1, .c = 1, .h = 2, .w = 4};
  TestVector<float> device_x({1, kNan, -1, -2, 3, 4, -3, -4});
  TestVector<float> device_y({0, 0});
  TestVector<uint8_t> winners({9, 9});
  ASSERT_THAT(PoolForward(Windows(x, true, 2, 2, 0), device_x.data(),
                          device_y.data(), winners.data(), nullptr),
              IsOk());
  EXPECT_THAT(device_y.Read(), ElementsAre(IsNan(), -1));
  EXPECT_THAT(winners.Read(), ElementsAre(1, 0));
}

TEST_F(PoolTest, RefusesWhatItCannotCount) {
  const PoolShape wide =
      Windows({.n = 1, .c = 1, .h = 20, .w = 20}, true, 17, 1, 0);
  EXPECT_THAT(PoolForward(wide, nullptr, nullptr, nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("maximum of 289 elements")));
  const PoolShape large =
      Windows({.n = 1 << 20, .c = 64, .h = 8, .w = 8}, false, 2, 2, 0);
  EXPECT_THAT(PoolBackward(large, nullptr, nullptr, nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4294967296 elements")));
}

}  // namespace
}  // namespace lockstep
