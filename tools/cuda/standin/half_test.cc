// The conversions of half and bfloat16, against arithmetic in double.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

struct Half {
  static constexpr int kDigits = 10;  // Stored ones.
  static constexpr int kBias = 15;
  static float Widen(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static uint16_t Round(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};

struct Bfloat16 {
  static constexpr int kDigits = 7;
  static constexpr int kBias = 127;
  static float Widen(uint16_t bits) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  }
  static uint16_t Round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

// The value that the format's definition gives to finite, positive bits.
template <typename Format>
double Value(uint16_t bits) {
  const int exponent = bits >> Format::kDigits;
  const int digits = bits & ((1 << Format::kDigits) - 1);
  const int leading = exponent == 0 ? 0 : 1 << Format::kDigits;
  return std::ldexp(leading + digits, (exponent == 0 ? 1 : exponent) -
                                          Format::kBias - Format::kDigits);
}

template <typename Format>
constexpr uint16_t kInfinity = (0x8000 >> Format::kDigits) - 1
                               << Format::kDigits;

template <typename Format>
class HalfTest : public testing::Test {};

using Formats = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(HalfTest, Formats);

TYPED_TEST(HalfTest, InfinityIsWhereTheFormatHasIt) {
  const uint16_t want = TypeParam::kDigits == 10 ? 0x7c00 : 0x7f80;
  EXPECT_EQ(kInfinity<TypeParam>, want);
  EXPECT_EQ(TypeParam::Widen(want), std::numeric_limits<float>::infinity());
  EXPECT_EQ(TypeParam::Widen(want | 0x8000),
            -std::numeric_limits<float>::infinity());
}

TYPED_TEST(HalfTest, WidensEveryValueExactlyAndBack) {
  for (uint16_t bits = 0; bits < kInfinity<TypeParam>; ++bits) {
    const float value = TypeParam::Widen(bits);
    ASSERT_EQ(value, Value<TypeParam>(bits)) << bits;
    ASSERT_EQ(TypeParam::Round(value), bits);
    const float negative = TypeParam::Widen(bits | 0x8000);
    ASSERT_EQ(negative, -value) << bits;
    ASSERT_TRUE(std::signbit(negative)) << bits;
    ASSERT_EQ(TypeParam::Round(negative), bits | 0x8000);
  }
}

// Between each two neighbours, the last to infinity: the floats around the
// middle, and the middle itself.
TYPED_TEST(HalfTest, RoundsToNearestTiesToEven) {
  for (uint16_t bits = 0; bits < kInfinity<TypeParam>; ++bits) {
    const uint16_t next = bits + 1;
    const double middle = (Value<TypeParam>(bits) + Value<TypeParam>(next)) / 2;
    const float tie = static_cast<float>(middle);
    const uint16_t even = bits % 2 == 0 ? bits : next;
    if (tie == middle) {
      ASSERT_EQ(TypeParam::Round(tie), even) << bits;
    }
    const float below = std::nextafter(tie, 0.0f);
    const float above =
        std::nextafter(tie, std::numeric_limits<float>::infinity());
    ASSERT_EQ(TypeParam::Round(below), bits) << bits;
    ASSERT_EQ(TypeParam::Round(above), next) << bits;
    ASSERT_EQ(TypeParam::Round(-above), next | 0x8000) << bits;
  }
}

TYPED_TEST(HalfTest, RoundsWhatIsOutOfRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam::Round(infinity), kInfinity<TypeParam>);
  EXPECT_EQ(TypeParam::Round(-infinity), kInfinity<TypeParam> | 0x8000);
  EXPECT_EQ(TypeParam::Round(std::numeric_limits<float>::max()),
            kInfinity<TypeParam>);
  EXPECT_EQ(TypeParam::Round(std::numeric_limits<float>::denorm_min()), 0);
}

TYPED_TEST(HalfTest, EveryNanStaysNan) {
  for (uint32_t bits = kInfinity<TypeParam> + 1; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(TypeParam::Widen(static_cast<uint16_t>(bits))));
  }
  // The payload must not be rounded away, as 0x7f800001's would be.
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u}) {
    EXPECT_EQ(TypeParam::Round(std::bit_cast<float>(bits)), 0x7fff);
  }
}

TEST(HalfArithmeticTest, RoundsOnce) {
  const __half one = __float2half(1.0f);
  const __half tiny = __float2half(0x1p-11f);  // Half of what 1 can resolve.
  EXPECT_EQ(__half2float(one + tiny), 1.0f);
  EXPECT_EQ(__half2float(one - tiny), 1.0f - 0x1p-11f);
  EXPECT_EQ(__half2float(tiny * tiny), 0x1p-22f);
}

TEST(Bfloat16ArithmeticTest, RoundsOnce) {
  const __nv_bfloat16 one = __float2bfloat16(1.0f);
  const __nv_bfloat16 tiny = __float2bfloat16(0x1p-8f);
  EXPECT_EQ(__bfloat162float(one + tiny), 1.0f);
  EXPECT_EQ(__bfloat162float(one - tiny), 1.0f - 0x1p-8f);
  EXPECT_EQ(__bfloat162float(tiny * tiny), 0x1p-16f);
}

}  // namespace
}  // namespace lockstep
