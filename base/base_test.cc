#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/device_span.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::Pointee;

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int half, Half(n));
  LOCKSTEP_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status CountIfOk(const absl::Status& status, int& count) {
  LOCKSTEP_RETURN_IF_ERROR(status);
  ++count;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsValue) {
  EXPECT_THAT(Quarter(12), IsOkAndHolds(3));
}

TEST(StatusMacrosTest, ReturnsFirstError) {
  EXPECT_THAT(Quarter(6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("odd")));
  EXPECT_THAT(Quarter(6), Not(IsOk()));
}

TEST(StatusMacrosTest, MovesValueThatCannotBeCopied) {
  auto forward = [](absl::StatusOr<std::unique_ptr<int>> in)
      -> absl::StatusOr<std::unique_ptr<int>> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<int> out, std::move(in));
    return out;
  };
  EXPECT_THAT(forward(std::make_unique<int>(5)), IsOkAndHolds(Pointee(5)));
}

TEST(StatusMacrosTest, GoesOnOnlyWhenOk) {
  int count = 0;
  EXPECT_THAT(CountIfOk(absl::OkStatus(), count), IsOk());
  EXPECT_THAT(CountIfOk(absl::CancelledError("stop"), count),
              StatusIs(absl::StatusCode::kCancelled, "stop"));
  EXPECT_EQ(count, 1);
}

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

// A binary format of 16 bits, by its two numbers.
struct Format {
  int fraction_bits;
  int min_exponent;  // Of normal numbers.
};
constexpr Format kFloat16 = {10, -14};
constexpr Format kBFloat16 = {7, -126};

uint32_t LargestExponent(Format format) {
  return 0x7fffu >> format.fraction_bits << format.fraction_bits;
}

// The value of bits that are not NaN, from the definition of the format.
double ValueOf(Format format, uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (magnitude == LargestExponent(format)) return sign * HUGE_VAL;
  const int exponent = static_cast<int>(magnitude >> format.fraction_bits);
  const int fraction =
      static_cast<int>(magnitude) & ((1 << format.fraction_bits) - 1);
  const int leading = exponent == 0 ? 0 : 1 << format.fraction_bits;
  return sign * std::ldexp(leading + fraction, std::max(exponent, 1) - 1 +
                                                   format.min_exponent -
                                                   format.fraction_bits);
}

// The nearest bits to a value that is not NaN, ties to even: counts multiples
// of the last place, which `nearbyint` rounds. The bits of positive numbers are
// in the order of their values, so a carry needs no care.
uint16_t Nearest(Format format, double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const uint32_t infinity = LargestExponent(format);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  const int exponent =
      magnitude == 0 ? format.min_exponent
                     : std::max(std::ilogb(magnitude), format.min_exponent);
  const double units =
      std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const uint32_t bits = static_cast<uint32_t>(units) +
                        (static_cast<uint32_t>(exponent - format.min_exponent)
                         << format.fraction_bits);
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

// What a NaN of float32 becomes.
uint16_t NarrowNan(Format format, uint32_t bits) {
  const uint32_t quiet = 1u << (format.fraction_bits - 1);
  const uint32_t payload = (bits & 0x007f'ffffu) >> (23 - format.fraction_bits);
  return static_cast<uint16_t>((bits >> 31 << 15) | LargestExponent(format) |
                               quiet | payload);
}

using Narrow = uint16_t (*)(float);

bool NarrowsRightly(Format format, Narrow narrow, uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const uint16_t want = std::isnan(value) ? NarrowNan(format, bits)
                                          : Nearest(format, double{value});
  return narrow(value) == want;
}

// How many of the floats that matter `narrow` gets wrong: every value of the
// format, the midpoints between, what is next to these, and a float in 4099
// of all. 4099 is prime, so that all lowest bits are met.
int64_t CountWrong(Format format, Narrow narrow) {
  int64_t wrong = 0;
  for (uint64_t bits = 0; bits < 1ull << 32; bits += 4099) {
    wrong += !NarrowsRightly(format, narrow, static_cast<uint32_t>(bits));
  }
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    const auto magnitude = static_cast<uint16_t>(half & 0x7fff);
    if (magnitude > LargestExponent(format)) continue;
    // Infinity stands for the number that would come after the largest.
    const double value =
        magnitude == LargestExponent(format)
            ? 2 * ValueOf(format, static_cast<uint16_t>(
                                      magnitude - (1 << format.fraction_bits)))
            : ValueOf(format, magnitude);
    const double before =
        magnitude == 0 ? 0
                       : ValueOf(format, static_cast<uint16_t>(magnitude - 1));
    for (const double center : {value, (value + before) / 2}) {
      const uint32_t sign = half & 0x8000u ? 0x8000'0000u : 0;
      const uint32_t bits =
          std::bit_cast<uint32_t>(static_cast<float>(center)) | sign;
      for (const uint32_t near : {bits - 1, bits, bits + 1}) {
        wrong += !NarrowsRightly(format, narrow, near);
      }
    }
  }
  return wrong;
}

TEST(HalfTest, Float16NarrowsToNearestEven) {
  EXPECT_EQ(CountWrong(kFloat16, [](float x) { return ToFloat16(x).bits; }), 0);
}

TEST(HalfTest, BFloat16NarrowsToNearestEven) {
  EXPECT_EQ(CountWrong(kBFloat16, [](float x) { return ToBFloat16(x).bits; }),
            0);
}

TEST(HalfTest, EveryFloat16Widens) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Float16 half = {static_cast<uint16_t>(bits)};
    const uint32_t got = std::bit_cast<uint32_t>(ToFloat(half));
    if ((bits & 0x7fff) > 0x7c00) {
      ASSERT_EQ(got,
                (bits & 0x8000) << 16 | 0x7fc0'0000 | (bits & 0x3ff) << 13);
    } else {
      const auto want = static_cast<float>(ValueOf(kFloat16, half.bits));
      ASSERT_EQ(got, std::bit_cast<uint32_t>(want)) << bits;
    }
  }
}

TEST(HalfTest, EveryBFloat16Widens) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 half = {static_cast<uint16_t>(bits)};
    const uint32_t got = std::bit_cast<uint32_t>(ToFloat(half));
    if ((bits & 0x7fff) > 0x7f80) {
      ASSERT_EQ(got, bits << 16 | 0x0040'0000);
    } else {
      const auto want = static_cast<float>(ValueOf(kBFloat16, half.bits));
      ASSERT_EQ(got, std::bit_cast<uint32_t>(want)) << bits;
    }
  }
}

TEST(HalfTest, EveryHalfComesBack) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const bool is_nan16 = (bits & 0x7fff) > 0x7c00;
    const bool is_nanb16 = (bits & 0x7fff) > 0x7f80;
    ASSERT_EQ(ToFloat16(ToFloat(Float16{bits})).bits,
              bits | (is_nan16 ? 0x0200 : 0));
    ASSERT_EQ(ToBFloat16(ToFloat(BFloat16{bits})).bits,
              bits | (is_nanb16 ? 0x0040 : 0));
  }
}

TEST(HalfTest, ConvertsAtCompileTime) {
  static_assert(ToFloat16(65519.996f).bits == 0x7bff);
  static_assert(ToFloat16(65520.0f).bits == 0x7c00);
  static_assert(ToFloat(Float16{1}) == 0x1p-24f);
  static_assert(ToBFloat16(1.0f).bits == 0x3f80);
}

// The controls: conversions that are nearly right.
TEST(HalfTest, RejectsTruncation) {
  EXPECT_GT(CountWrong(kBFloat16,
                       [](float x) {
                         return static_cast<uint16_t>(
                             std::bit_cast<uint32_t>(x) >> 16);
                       }),
            0);
}

TEST(HalfTest, RejectsTiesAwayFromZero) {
  EXPECT_GT(CountWrong(kBFloat16,
                       [](float x) {
                         const uint32_t bits = std::bit_cast<uint32_t>(x);
                         if (std::isnan(x)) return ToBFloat16(x).bits;
                         return static_cast<uint16_t>((bits + 0x8000) >> 16);
                       }),
            0);
}

TEST(HalfTest, RejectsSubnormalsFlushedToZero) {
  EXPECT_GT(
      CountWrong(kFloat16,
                 [](float x) {
                   const uint16_t bits = ToFloat16(x).bits;
                   const bool small = (bits & 0x7c00) == 0;
                   return static_cast<uint16_t>(small ? bits & 0x8000 : bits);
                 }),
      0);
}

TEST(HalfTest, RejectsInfinityForNan) {
  EXPECT_GT(CountWrong(kFloat16,
                       [](float x) {
                         const uint16_t bits = ToFloat16(x).bits;
                         return static_cast<uint16_t>(
                             std::isnan(x) ? bits & 0xfc00 : bits);
                       }),
            0);
}

}  // namespace
}  // namespace lockstep
