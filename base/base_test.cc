// Tests of statuses, too little memory and time, random numbers, the 16-bit
// floats and CUDA's errors. The errors are tested on the stand-in runtime and
// on CUDA's own.
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/catch_bad_alloc.h"
#include "base/counter_random.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/fnv1a.h"
#include "base/group_digits.h"
#include "base/half_reference.h"
#include "base/run_within.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}

// Counts the calls that reach its end.
absl::StatusOr<int> Quarter(int n, int& count) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int half, Half(n));
  LOCKSTEP_RETURN_IF_ERROR(Half(half).status());
  ++count;
  return half / 2;
}

TEST(StatusMacrosTest, AssignOrReturnTheFirstError) {
  int count = 0;
  EXPECT_THAT(Quarter(12, count), IsOkAndHolds(3));
  for (const int n : {5, 6}) {
    EXPECT_THAT(Quarter(n, count),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("odd")));
    EXPECT_THAT(Quarter(n, count), Not(IsOk()));
  }
  EXPECT_EQ(count, 1);
}

TEST(CudaStatusTest, SaysWhatFailedAndHow) {
  EXPECT_THAT(CudaStatus(cudaSuccess, "cudaFree"), IsOk());
  EXPECT_THAT(
      CudaStatus(cudaErrorInvalidValue, "cudaMemcpy of 7 bytes"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "cudaMemcpy of 7 bytes: cudaErrorInvalidValue (1): invalid "
               "argument"));
}

TEST(CudaStatusTest, GivesTheCodesOfItsContract) {
  using enum absl::StatusCode;
  const auto code = [](cudaError_t e) { return CudaStatus(e, "x").code(); };
  EXPECT_EQ(code(cudaErrorInvalidConfiguration), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorInvalidDevice), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorInvalidResourceHandle), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorMemoryAllocation), kResourceExhausted);
  EXPECT_EQ(code(cudaErrorLaunchOutOfResources), kResourceExhausted);
  EXPECT_EQ(code(cudaErrorNoDevice), kFailedPrecondition);
  EXPECT_EQ(code(cudaErrorInsufficientDriver), kFailedPrecondition);
  EXPECT_EQ(code(cudaErrorNotSupported), kUnimplemented);
  EXPECT_EQ(code(cudaErrorNotReady), kUnavailable);
  EXPECT_EQ(code(cudaErrorLaunchFailure), kInternal);
}

using Narrow = uint16_t (*)(float);

bool NarrowsRightly(const HalfFormat& format, Narrow narrow, uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  return narrow(value) == EncodeHalf(format, double{value});
}

// Returns how many floats `narrow` converts wrongly. Tries every value of the
// format, the midpoints between values, the neighbours of both, and one float
// in 4099 of all. 4099 is prime, so all combinations of the lowest bits occur.
int64_t CountWrong(const HalfFormat& format, Narrow narrow) {
  int64_t wrong = 0;
  for (uint64_t bits = 0; bits < 1ull << 32; bits += 4099) {
    wrong += !NarrowsRightly(format, narrow, static_cast<uint32_t>(bits));
  }
  for (uint16_t half = 0; half <= 0x7fff; ++half) {
    double value = DecodeHalf(format, half);
    if (std::isnan(value)) continue;
    // In place of infinity, takes the number that would follow the largest one.
    if (std::isinf(value)) value = std::ldexp(1, format.max_exponent + 1);
    const double before =
        half == 0 ? 0 : DecodeHalf(format, static_cast<uint16_t>(half - 1));
    for (const double center : {value, (value + before) / 2}) {
      for (const uint32_t sign : {0u, 0x8000'0000u}) {
        const uint32_t bits =
            std::bit_cast<uint32_t>(static_cast<float>(center)) | sign;
        for (const uint32_t near : {bits - 1, bits, bits + 1}) {
          wrong += !NarrowsRightly(format, narrow, near);
        }
      }
    }
  }
  return wrong;
}

TEST(HalfTest, NarrowsToNearestEven) {
  EXPECT_EQ(
      CountWrong(kFloat16Format, [](float x) { return ToFloat16(x).bits; }), 0);
  EXPECT_EQ(
      CountWrong(kBFloat16Format, [](float x) { return ToBFloat16(x).bits; }),
      0);
}

// Expects that every value widens exactly and narrows back to itself, and that
// a NaN widens to a quiet NaN with its payload.
template <typename Half>
void ExpectEveryHalfWidensAndComesBack(const HalfFormat& format,
                                       Half (*narrow)(float)) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const Half half = {static_cast<uint16_t>(i)};
    const auto want = static_cast<float>(DecodeHalf(format, half.bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(ToFloat(half)),
              std::bit_cast<uint32_t>(want))
        << i;
    const uint32_t quiet = std::isnan(want) ? 1u << (format.precision - 2) : 0;
    ASSERT_EQ(narrow(want).bits, i | quiet);
  }
}

TEST(HalfTest, EveryHalfWidensAndComesBack) {
  ExpectEveryHalfWidensAndComesBack<Float16>(kFloat16Format, ToFloat16);
  ExpectEveryHalfWidensAndComesBack<BFloat16>(kBFloat16Format, ToBFloat16);
}

TEST(HalfTest, ConvertsAtCompileTime) {
  static_assert(ToFloat16(65519.996f).bits == 0x7bff);
  static_assert(ToFloat16(65520.0f).bits == 0x7c00);
  static_assert(ToFloat(Float16{1}) == 0x1p-24f);
  static_assert(ToBFloat16(1.0f).bits == 0x3f80);
}

// The controls: conversions that are nearly right.
TEST(HalfTest, RejectsConversionsThatAreNearlyRight) {
  const Narrow truncates = [](float x) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
  };
  EXPECT_GT(CountWrong(kBFloat16Format, truncates), 0);
  const Narrow rounds_ties_away_from_zero = [](float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return ToBFloat16(x).bits;
    return static_cast<uint16_t>((bits + 0x8000) >> 16);
  };
  EXPECT_GT(CountWrong(kBFloat16Format, rounds_ties_away_from_zero), 0);
  const Narrow flushes_subnormals = [](float x) {
    const uint16_t bits = ToFloat16(x).bits;
    const bool small = (bits & 0x7c00) == 0;
    return static_cast<uint16_t>(small ? bits & 0x8000 : bits);
  };
  EXPECT_GT(CountWrong(kFloat16Format, flushes_subnormals), 0);
  const Narrow makes_nan_infinite = [](float x) {
    const uint16_t bits = ToFloat16(x).bits;
    return static_cast<uint16_t>(std::isnan(x) ? bits & 0xfc00 : bits);
  };
  EXPECT_GT(CountWrong(kFloat16Format, makes_nan_infinite), 0);
}

// The hashes are those of Fowler, Noll and Vo's test vectors.
TEST(Fnv1aTest, HashesAsItsAuthorsDo) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8);
  EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar"));
}

TEST(CounterRandomTest, HashesAsSplitMix64) {
  // The first two numbers of SplitMix64 from state 0.
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafu);
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15 * 2), 0x6e789e6aa1b965f4u);
}

// Users keep masks and crops of earlier runs, so the numbers must never change.
TEST(CounterRandomTest, GivesTheSameNumbersForever) {
  EXPECT_EQ(CounterRandom(0).Bits(0), 0x618a563d72517b1bu);
  EXPECT_EQ(CounterRandom(1, 2, 3, 4).Bits(5), 0x7bd33ca7609013u);
}

TEST(CounterRandomTest, HasAStreamForEachKey) {
  std::set<uint64_t> first;
  for (uint64_t key = 0; key < 4 * 4 * 4 * 4; ++key) {
    first.insert(
        CounterRandom(key % 4, key / 4 % 4, key / 16 % 4, key / 64).Bits(0));
  }
  EXPECT_EQ(first.size(), 256u);
  EXPECT_EQ(CounterRandom(7).Bits(0), CounterRandom(7, 0, 0, 0).Bits(0));
}

// Checks 16 equally likely values over neighbouring counters and over
// neighbouring keys. Chi-squared with 15 degrees of freedom is above 44.3 once
// in 10,000. The keys are fixed, so the test passes always or never.
TEST(CounterRandomTest, IsUniformAlongCountersAndKeys) {
  constexpr int kDraws = 16 * 1000;
  std::array<std::array<int, 16>, 5> counts = {};
  for (int i = 0; i < kDraws; ++i) {
    const CounterRandom stream(17, 1);
    const CounterRandom key(17, i);
    const float value = stream.UniformFloat(i);
    ASSERT_TRUE(value >= 0 && value < 1 && stream.Uniform(i) < 1);
    ++counts[0][static_cast<int>(value * 16)];
    ++counts[1][static_cast<int>(stream.Uniform(i) * 16)];
    ++counts[2][stream.UniformInt(i, 16)];
    ++counts[3][stream.Bits(i) % 16];
    ++counts[4][key.UniformInt(0, 16)];
  }
  for (const auto& count : counts) {
    double chi_squared = 0;
    for (const int n : count) chi_squared += (n - 1000.) * (n - 1000.) / 1000;
    EXPECT_LT(chi_squared, 44.3);
  }
}

TEST(GroupedTest, GroupsDigitsByThree) {
  EXPECT_EQ(GroupDigits(0), "0");
  EXPECT_EQ(GroupDigits(999), "999");
  EXPECT_EQ(GroupDigits(1000), "1,000");
  EXPECT_EQ(GroupDigits(1281167), "1,281,167");
  EXPECT_EQ(GroupDigits(100000), "100,000");
  EXPECT_EQ(GroupDigits(-1000), "-1,000");
  EXPECT_EQ(GroupDigits(-100), "-100");
  EXPECT_EQ(GroupDigits(std::numeric_limits<int64_t>::max()),
            "9,223,372,036,854,775,807");
}

TEST(RunWithinTest, ReturnsTheStatusOrAbandonsTheThread) {
  EXPECT_THAT(RunWithin(absl::Seconds(60), [] { return absl::OkStatus(); }),
              IsOk());
  EXPECT_THAT(RunWithin(absl::InfiniteDuration(),
                        [] { return absl::AbortedError("told to"); }),
              StatusIs(absl::StatusCode::kAborted, "told to"));
  const auto waits = std::make_shared<absl::Notification>();
  const auto ends = std::make_shared<absl::Notification>();
  const auto wait = [waits, ends] {
    waits->WaitForNotification();
    ends->Notify();
    return absl::OkStatus();
  };
  EXPECT_THAT(
      RunWithin(absl::Milliseconds(10), wait),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "not finished after 10ms"));
  waits->Notify();  // The abandoned thread goes on.
  EXPECT_TRUE(ends->WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST(CatchBadAllocTest, ReturnsTheResultOrWhatWasLacking) {
  EXPECT_THAT(CatchBadAlloc([] { return absl::StatusOr<int>(7); }),
              IsOkAndHolds(7));
  const auto run_out = []() -> absl::Status { throw std::bad_alloc(); };
  EXPECT_THAT(
      CatchBadAlloc(run_out),
      StatusIs(absl::StatusCode::kResourceExhausted, "not enough memory"));
  EXPECT_THAT(
      CatchBadAlloc(run_out, "no memory for x"),
      StatusIs(absl::StatusCode::kResourceExhausted, "no memory for x"));
  const auto start_thread = []() -> absl::StatusOr<int> {
    throw std::system_error(EAGAIN, std::generic_category());
  };
  EXPECT_THAT(CatchBadAlloc(start_thread),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("not enough memory: ")));
}

}  // namespace
}  // namespace lockstep
