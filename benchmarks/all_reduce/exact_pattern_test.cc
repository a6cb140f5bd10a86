// Exactness, by brute force; and that every way to go wrong is counted.
#include "benchmarks/all_reduce/exact_pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::HasSubstr;

// One rank's memory of `count` elements.
class Memory {
 public:
  Memory(DataType type, int64_t count)
      : type_(type), count_(count), bytes_(count * SizeOf(type)) {}

  Buffer buffer() { return {bytes_.data(), count_, type_}; }
  std::byte* at(int64_t i) { return bytes_.data() + i * SizeOf(type_); }
  size_t element() const { return SizeOf(type_); }

 private:
  DataType type_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

// The value of an element, widened.
double ToDouble(DataType type, const std::byte* from) {
  const auto as = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (type) {
    case DataType::kFloat64:
      return as(double{});
    case DataType::kFloat32:
      return as(float{});
    case DataType::kBFloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(as(uint16_t{})) << 16);
    case DataType::kFloat16: {
      const uint16_t bits = as(uint16_t{});
      const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
      const double sign = bits >> 15 ? -1 : 1;
      return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                           : sign * std::ldexp(1024 + mantissa, exponent - 25);
    }
    case DataType::kInt32:
      return as(int32_t{});
    case DataType::kInt64:
      return static_cast<double>(as(int64_t{}));
    case DataType::kUInt8:
      break;
  }
  return as(uint8_t{});
}

double Reduced(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

// The nearest element to an exact quotient or integer.
double Rounded(DataType type, double value) {
  switch (type) {
    case DataType::kFloat64:
      return value;
    case DataType::kFloat32:
      return static_cast<float>(value);
    case DataType::kFloat16:
    case DataType::kBFloat16: {
      if (value == 0) return 0;
      const int digits = type == DataType::kFloat16 ? 11 : 8;
      const int shift = digits - 1 - std::ilogb(value);
      return std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift);
    }
    case DataType::kUInt8:
      return static_cast<double>(
          static_cast<uint8_t>(static_cast<int64_t>(value)));
    default:
      return std::trunc(value);
  }
}

class ExactPatternTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp, int>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
  int world_size() const { return std::get<2>(GetParam()); }

  ExactPattern Pattern(int rank) const {
    return *ExactPattern::Create(type(), op(), rank, world_size());
  }

  Memory Input(int rank, int64_t iteration, int64_t count) const {
    Memory memory(type(), count);
    Pattern(rank).Fill(iteration, memory.buffer());
    return memory;
  }

  // The reduction of all inputs, in float64, which is exact for them.
  std::vector<double> Result(int64_t iteration, int64_t count) const {
    std::vector<double> result(count);
    for (int rank = 0; rank < world_size(); ++rank) {
      Memory input = Input(rank, iteration, count);
      for (int64_t i = 0; i < count; ++i) {
        const double value = ToDouble(type(), input.at(i));
        result[i] = rank == 0 ? value : Reduced(op(), result[i], value);
      }
    }
    for (double& value : result) {
      if (op() == ReduceOp::kAverage) value /= world_size();
      value = Rounded(type(), value);
    }
    return result;
  }

  // Memory that CountWrong accepts, found element by element.
  int64_t WrongOf(int64_t iteration, Memory& memory) const {
    return Pattern(0).CountWrong(iteration, memory.buffer());
  }
};

constexpr int64_t kCount = 5000;  // More than one block, the last not whole.

// The right answer as elements of the type.
Memory Encoded(DataType type, const std::vector<double>& values) {
  Memory memory(type, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const auto put = [&](auto element) {
      std::memcpy(memory.at(static_cast<int64_t>(i)), &element,
                  sizeof(element));
    };
    switch (type) {
      case DataType::kFloat64:
        put(value);
        break;
      case DataType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DataType::kBFloat16:
        put(static_cast<uint16_t>(
            std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
        break;
      case DataType::kFloat16: {
        uint16_t bits = 0;
        if (value != 0) {
          const int e = std::ilogb(value);
          const double mantissa = std::ldexp(std::abs(value), 10 - e) - 1024;
          bits = static_cast<uint16_t>(((e + 15) << 10) |
                                       static_cast<int>(mantissa));
          if (value < 0) bits |= 0x8000;
        }
        put(bits);
        break;
      }
      case DataType::kInt32:
        put(static_cast<int32_t>(value));
        break;
      case DataType::kInt64:
        put(static_cast<int64_t>(value));
        break;
      case DataType::kUInt8:
        put(static_cast<uint8_t>(value));
        break;
    }
  }
  return memory;
}

TEST_P(ExactPatternTest, KnowsTheResult) {
  for (const int64_t iteration : {0, 1, 77}) {
    for (const int64_t count : {int64_t{1}, int64_t{4096}, kCount}) {
      Memory right = Encoded(type(), Result(iteration, count));
      EXPECT_EQ(WrongOf(iteration, right), 0) << iteration << " " << count;
    }
  }
}

// The inputs are such that no rounding happens on the way, in any order.
TEST_P(ExactPatternTest, StaysExactInEveryType) {
  const double limit = type() == DataType::kBFloat16 ? 256 : 2048;
  std::vector<double> largest(kCount), forward(kCount);
  for (int rank = 0; rank < world_size(); ++rank) {
    Memory input = Input(rank, 3, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const double value = std::abs(ToDouble(type(), input.at(i)));
      ASSERT_EQ(value, std::trunc(value));
      forward[i] = op() == ReduceOp::kProduct && rank > 0 ? forward[i] * value
                                                          : forward[i] + value;
    }
  }
  const bool is_float =
      type() == DataType::kBFloat16 || type() == DataType::kFloat16;
  if (!is_float || op() == ReduceOp::kMin || op() == ReduceOp::kMax) return;
  // The largest that any partial result can be.
  EXPECT_LE(*std::max_element(forward.begin(), forward.end()), limit);
}

TEST_P(ExactPatternTest, CountsEveryElementOfAStaleResult) {
  for (const int64_t earlier : {4, 3}) {
    Memory stale = Encoded(type(), Result(earlier, kCount));
    EXPECT_EQ(WrongOf(5, stale), kCount);
  }
}

TEST_P(ExactPatternTest, CountsALostTail) {
  Memory memory = Encoded(type(), Result(5, kCount));
  const std::vector<double> stale = Result(4, kCount);
  Memory old = Encoded(type(), stale);
  std::memcpy(memory.at(kCount - 3), old.at(kCount - 3), 3 * memory.element());
  EXPECT_EQ(WrongOf(5, memory), 3);
}

TEST_P(ExactPatternTest, CountsSwappedChunks) {
  Memory memory = Encoded(type(), Result(5, kCount));
  Memory swapped = Encoded(type(), Result(5, kCount));
  const int64_t half = kCount / 2;
  std::memcpy(swapped.at(0), memory.at(half), half * memory.element());
  std::memcpy(swapped.at(half), memory.at(0), half * memory.element());
  // Results take more than two values, so well over a third differ.
  EXPECT_GT(WrongOf(5, swapped), kCount / 3);
}

TEST_P(ExactPatternTest, CountsAShiftByOneElement) {
  Memory memory = Encoded(type(), Result(5, kCount));
  std::memmove(memory.at(1), memory.at(0), (kCount - 1) * memory.element());
  EXPECT_GT(WrongOf(5, memory), kCount / 3);
}

TEST_P(ExactPatternTest, CountsARankThatIsCountedTwiceOrNotAtAll) {
  if (world_size() == 1 || op() != ReduceOp::kSum) return;
  std::vector<double> sum(kCount);
  for (int rank = 0; rank < world_size(); ++rank) {
    Memory input = Input(rank, 5, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      sum[i] += ToDouble(type(), input.at(i));
    }
  }
  for (const int rank : {0, 1, world_size() - 1}) {
    Memory input = Input(rank, 5, kCount);
    for (const int more : {-1, 1}) {
      std::vector<double> spoilt(kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        spoilt[i] =
            Rounded(type(), sum[i] + more * ToDouble(type(), input.at(i)));
      }
      Memory memory = Encoded(type(), spoilt);
      EXPECT_GT(WrongOf(5, memory), kCount / 2) << rank << " " << more;
    }
  }
}

TEST_P(ExactPatternTest, DiffersByRankAndPosition) {
  Memory first = Input(0, 5, kCount);
  Memory next = Input(1 % world_size(), 5, kCount);
  int64_t same_rank = 0, same_position = 0;
  for (int64_t i = 1; i < kCount; ++i) {
    same_rank += std::memcmp(first.at(i), next.at(i), first.element()) == 0;
    same_position +=
        std::memcmp(first.at(i), first.at(i - 1), first.element()) == 0;
  }
  if (world_size() > 1 && op() != ReduceOp::kProduct) {
    EXPECT_LT(same_rank, kCount / 2);
  }
  if (op() != ReduceOp::kProduct) {
    EXPECT_LT(same_position, kCount / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExactPatternTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::ValuesIn(kAllReduceOps),
                                          testing::Values(1, 2, 3, 8, 64)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               Name(std::get<1>(info.param)),
                                               "P", std::get<2>(info.param));
                         });

TEST(ExactPatternCreateTest, RefusesRanksThatCannotBe) {
  for (const auto& [rank, world_size] :
       {std::pair(0, 0), std::pair(0, 65), std::pair(2, 2), std::pair(-1, 2)}) {
    EXPECT_THAT(ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, rank,
                                     world_size),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("rank ", rank))));
  }
}

TEST(ExactPatternCreateTest, TakesMemoryOfAnyAlignment) {
  std::vector<std::byte> bytes(4 * 100 + 1);
  const Buffer odd(bytes.data() + 1, 100, DataType::kFloat32);
  ExactPattern pattern =
      *ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, 0, 1);
  pattern.Fill(0, odd);
  EXPECT_EQ(pattern.CountWrong(0, odd), 0);
}

}  // namespace
}  // namespace lockstep::benchmarks
