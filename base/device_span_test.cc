#include "base/device_span.h"

#include <cstdint>
#include <type_traits>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

template <typename T>
concept Indexable = requires(T t) {
  t[0];
};

TEST(DeviceSpanTest, DefaultIsEmpty) {
  constexpr DeviceSpan<float> span;
  EXPECT_EQ(span.data(), nullptr);
  EXPECT_EQ(span.size(), 0);
  EXPECT_TRUE(span.empty());
}

TEST(DeviceSpanTest, KnowsItsRange) {
  double data[7];
  const DeviceSpan<double> span(data, 7);
  EXPECT_EQ(span.data(), data);
  EXPECT_EQ(span.size(), 7);
  EXPECT_EQ(span.size_bytes(), 56);
  EXPECT_FALSE(span.empty());
}

TEST(DeviceSpanTest, CountsBytesBeyondThirtyTwoBits) {
  float data[1];
  const DeviceSpan<float> span(data, int64_t{1} << 33);
  EXPECT_EQ(span.size_bytes(), int64_t{1} << 35);
}

TEST(DeviceSpanTest, SubspansCoverEveryPiece) {
  int data[5];
  const DeviceSpan<int> span(data, 5);
  for (int64_t offset = 0; offset <= 5; ++offset) {
    for (int64_t count = 0; offset + count <= 5; ++count) {
      const DeviceSpan<int> piece = span.subspan(offset, count);
      EXPECT_EQ(piece.data(), data + offset);
      EXPECT_EQ(piece.size(), count);
    }
  }
}

TEST(DeviceSpanTest, ConvertsToConstOnly) {
  int data[2];
  const DeviceSpan<const int> span = DeviceSpan<int>(data, 2);
  EXPECT_EQ(span.data(), data);
  EXPECT_EQ(span.size(), 2);
  static_assert(!std::is_convertible_v<DeviceSpan<const int>, DeviceSpan<int>>);
  static_assert(!std::is_convertible_v<DeviceSpan<int>, DeviceSpan<long>>);
}

TEST(DeviceSpanTest, HostCodeCannotDereference) {
  static_assert(Indexable<int*>);  // The control.
  static_assert(!Indexable<DeviceSpan<int>>);
}

}  // namespace
}  // namespace lockstep
