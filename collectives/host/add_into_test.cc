#include "collectives/host/add_into.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "collectives/buffer.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Adds through memory that starts `offset` bytes after an aligned address, and
// checks that the bytes around the sum keep their value.
template <typename T>
std::vector<T> Sum(DataType type, std::vector<T> a, const std::vector<T>& b,
                   size_t offset) {
  const size_t size = a.size() * sizeof(T);
  constexpr std::byte kGuard{0x5a};
  std::vector<std::byte> sum(offset + size + 1, kGuard);
  std::vector<std::byte> term(offset + size);
  if (size > 0) {
    std::memcpy(sum.data() + offset, a.data(), size);
    std::memcpy(term.data() + offset, b.data(), size);
  }
  AddInto(type, std::span(sum).subspan(offset, size),
          std::span(term).subspan(offset, size));
  for (size_t i = 0; i < offset; ++i) EXPECT_EQ(sum[i], kGuard);
  EXPECT_EQ(sum.back(), kGuard);
  if (size > 0) std::memcpy(a.data(), sum.data() + offset, size);
  return a;
}

template <typename T>
void CheckAllCountsAndOffsets(DataType type) {
  for (size_t count = 0; count < 70; ++count) {
    std::vector<T> a, b, want;
    for (size_t i = 0; i < count; ++i) {
      a.push_back(static_cast<T>(3 * i));
      b.push_back(static_cast<T>(1000 - i));
      want.push_back(static_cast<T>(2 * i + 1000));
    }
    for (const size_t offset : {0, 1, 4, 7}) {
      EXPECT_EQ(Sum(type, a, b, offset), want) << count << " at " << offset;
    }
  }
}

TEST(AddIntoTest, EveryCountAndAlignment) {
  CheckAllCountsAndOffsets<float>(DataType::kFloat32);
  CheckAllCountsAndOffsets<double>(DataType::kFloat64);
  CheckAllCountsAndOffsets<int64_t>(DataType::kInt64);
}

TEST(AddIntoTest, Int64WrapsAround) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Sum<int64_t>(DataType::kInt64, {kMax, kMin}, {1, -1}, 0),
            (std::vector<int64_t>{kMin, kMax}));
}

TEST(AddIntoTest, RoundsOnceInItsOwnType) {
  // 2^24 + 1 lies between two float32 and goes to the even one.
  EXPECT_EQ(Sum<float>(DataType::kFloat32, {16777216.0f}, {1.0f}, 0)[0],
            16777216.0f);
  EXPECT_EQ(Sum<double>(DataType::kFloat64, {16777216.0}, {1.0}, 0)[0],
            16777217.0);
}

TEST(AddIntoTest, KeepsNanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> sum =
      Sum<float>(DataType::kFloat32, {infinity, infinity, NAN, 1.0f},
                 {1.0f, -infinity, 1.0f, NAN}, 0);
  EXPECT_EQ(sum[0], infinity);
  EXPECT_TRUE(std::isnan(sum[1]));
  EXPECT_TRUE(std::isnan(sum[2]));
  EXPECT_TRUE(std::isnan(sum[3]));
}

}  // namespace
}  // namespace lockstep
