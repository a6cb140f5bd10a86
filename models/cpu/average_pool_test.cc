#include "models/cpu/average_pool.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/shape.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Checks a layer that averages windows of height x width against the
// definition, in float64.
void CheckPool(const Layer& layer, const Shape& in, int64_t height,
               int64_t width) {
  SCOPED_TRACE(testing::Message()
               << in.n << "x" << in.c << "x" << in.h << "x" << in.w
               << " window " << height << "x" << width);
  Parameters none({});
  const auto run = RunLayer(layer, none, in, true);
  ASSERT_THAT(run, IsOk());
  const Shape& out = run->output;
  ASSERT_EQ(out, (Shape{in.n, in.c, in.h / height, in.w / width}));
  std::vector<double> y(out.size()), dx(in.size());
  const int64_t window = height * width;
  const double area = static_cast<double>(window);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t c = i % out.c, q = i / out.c % out.w;
    const int64_t p = i / out.c / out.w % out.h, n = i / out.c / out.w / out.h;
    for (int64_t k = 0; k < window; ++k) {
      const int64_t at =
          At(in, n, c, p * height + k / width, q * width + k % width);
      y[i] += run->x[at] / area;
      dx[at] += run->dy[i] / area;
    }
  }
  // The sums are exact; what remains is a division, or a product with the
  // rounded 1 / area: two roundings of numbers up to the limits. A division by
  // a power of two is exact, so those windows would pass with none.
  const double unit = (window & (window - 1)) == 0 ? 0 : 2 * 0x1p-24;
  EXPECT_THAT(CheckNear(run->y, y, unit * kInputLimit), IsOk());
  EXPECT_THAT(CheckNear(run->dx, dx, unit * kOtherLimit), IsOk());
  EXPECT_THAT(run->ready, IsEmpty());
}

void CheckPool(const Shape& in, int64_t window) {
  CheckPool(*CreateAveragePool("pool", window), in, window, window);
}

void CheckGlobalPool(const Shape& in) {
  CheckPool(*CreateGlobalAveragePool("pool"), in, in.h, in.w);
}

TEST(AveragePoolTest, MatchesTheDefinition) {
  CheckPool({1, 1, 1, 1}, 1);
  CheckPool({1, 1, 2, 2}, 2);
  CheckPool({3, 5, 6, 4}, 2);
  CheckPool({17, 20, 26, 26}, 2);
  CheckPool({2, 50, 9, 9}, 2);  // A row and a column are left over.
  CheckPool({2, 33, 7, 10}, 3);
  CheckPool({0, 3, 4, 4}, 2);
}

TEST(AveragePoolTest, GlobalTakesWholeImages) {
  CheckGlobalPool({1, 1, 1, 1});
  CheckGlobalPool({2, 512, 4, 4});
  CheckGlobalPool({3, 5, 2, 8});
  CheckGlobalPool({2, 33, 3, 7});
  CheckGlobalPool({0, 3, 4, 4});
}

TEST(AveragePoolTest, RejectsAWindowLargerThanTheInput) {
  Parameters none({});
  const auto layer = CreateAveragePool("pool", 3);
  for (const Shape& input : {Shape{1, 1, 2, 3}, Shape{1, 1, 3, 2}}) {
    EXPECT_THAT(RunLayer(*layer, none, input, true).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("pool: window 3 does not fit")));
  }
  EXPECT_THAT(RunLayer(*layer, none, {1, 1, 3, 3}, true).status(), IsOk());
}

}  // namespace
}  // namespace lockstep
