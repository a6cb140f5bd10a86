// That every instruction set gives the bits of the baseline, which
// reduction_test cannot see: it runs what the processor has. And reductions
// whose answer is known.
#include "collectives/algorithms/reduction_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/copy.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kWorldSize = 3;

// What the four loops make of two operands, one after the other.
std::vector<Bytes> RunAll(VectorUnit unit, DataType type, ReduceOp op,
                          const std::vector<Bytes>& inputs, int64_t n) {
  const ReductionKernels& kernels = ReductionKernelsFor(type, op, unit);
  const auto size = static_cast<size_t>(n * SizeOf(AccumulatorOf(type, op)));
  Bytes begun = inputs[0];
  if (kernels.begin != nullptr) {
    begun.resize(size);
    kernels.begin(inputs[0].data(), begun.data(), n);
  }
  Bytes sums(size);
  kernels.accumulate(begun.data(), inputs[1].data(), sums.data(), n);
  Bytes merged(size);
  kernels.merge(sums.data(), begun.data(), merged.data(), n);
  Bytes finished;
  if (kernels.finish != nullptr) {
    finished.resize(inputs[0].size());
    kernels.finish(merged.data(), finished.data(), n, kWorldSize);
  }
  return {begun, sums, merged, finished};
}

class ReductionKernelsTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

TEST_P(ReductionKernelsTest, EveryInstructionSetGivesTheSameBits) {
  const auto [type, op] = GetParam();
  for (int64_t n = 1; n <= 1000; n += n < 70 ? 1 : 93) {
    const std::vector<Bytes> inputs = DrawInputs(type, 2, n);
    EXPECT_EQ(RunAll(BestVectorUnit(), type, op, inputs, n),
              RunAll(VectorUnit::kBaseline, type, op, inputs, n))
        << n;
  }
}

// Every float16, and floats that are next to one or in the middle between two,
// or NaN.
TEST(ReductionKernelsFloat16Test, EveryInstructionSetConvertsAlike) {
  constexpr int64_t kCount = 1 << 16;
  std::vector<uint16_t> halves(kCount);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<uint32_t> floats(kCount);
  for (const VectorUnit unit : {VectorUnit::kBaseline, BestVectorUnit()}) {
    const ReductionKernels& kernels =
        ReductionKernelsFor(DataType::kFloat16, ReduceOp::kSum, unit);
    std::vector<float> widened(kCount);
    kernels.begin(halves.data(), widened.data(), kCount);
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]),
                std::bit_cast<uint32_t>(ToFloat(Float16{halves[i]})));
    }
    for (const uint32_t distance : {0u, 1u, 0xfffu, 0x1000u, 0x1001u}) {
      for (size_t i = 0; i < floats.size(); ++i) {
        floats[i] = std::bit_cast<uint32_t>(widened[i]) + distance;
      }
      std::vector<uint16_t> narrowed(kCount);
      kernels.finish(floats.data(), narrowed.data(), kCount, kWorldSize);
      for (size_t i = 0; i < floats.size(); ++i) {
        ASSERT_EQ(narrowed[i], ToFloat16(std::bit_cast<float>(floats[i])).bits)
            << floats[i];
      }
    }
  }
}

// The control: the comparison sees another operand, and another operation.
TEST_P(ReductionKernelsTest, RejectsOtherOperands) {
  const auto [type, op] = GetParam();
  const std::vector<Bytes> inputs = DrawInputs(type, 3, 67);
  const std::vector<Bytes> others = {inputs[0], inputs[2]};
  EXPECT_NE(RunAll(BestVectorUnit(), type, op, inputs, 67),
            RunAll(VectorUnit::kBaseline, type, op, others, 67));
}

INSTANTIATE_TEST_SUITE_P(
    Each, ReductionKernelsTest,
    testing::Combine(testing::ValuesIn(kAllDataTypes),
                     testing::ValuesIn(kAllReduceOps)),
    [](const testing::TestParamInfo<ReductionKernelsTest::ParamType>& info) {
      return absl::StrCat(Name(std::get<0>(info.param)),
                          Name(std::get<1>(info.param)));
    });

template <typename E>
std::vector<E> FoldValues(ReduceOp op, std::vector<E> a, std::vector<E> b) {
  const void* const inputs[] = {a.data(), b.data()};
  std::vector<E> result(a.size());
  void* const outputs[] = {result.data()};
  Reduction(kDataTypeOf<E>, op, 2)
      .Fold(inputs, outputs, static_cast<int64_t>(a.size()));
  return result;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ReductionValuesTest, NanInEitherOperandGivesOneNan) {
  const float payload = std::bit_cast<float>(0xffc1'2345u);
  const float signalling = std::bit_cast<float>(0x7f80'0001u);
  std::vector<float> a, b;
  for (const float nan : {payload, signalling, NAN}) {
    for (const float other : {1.0f, kInfinity, -0.0f, payload, signalling}) {
      for (int i = 0; i < 9; ++i) {  // Vectors, and what is left.
        a.insert(a.end(), {nan, other});
        b.insert(b.end(), {other, nan});
      }
    }
  }
  for (const ReduceOp op : kAllReduceOps) {
    for (const float x : FoldValues(op, a, b)) {
      EXPECT_EQ(std::bit_cast<uint32_t>(x), 0x7fc0'0000u) << Name(op);
    }
  }
}

TEST(ReductionValuesTest, InfinitiesThatCancelGiveTheSameNan) {
  const float nan =
      FoldValues<float>(ReduceOp::kSum, {kInfinity}, {-kInfinity})[0];
  EXPECT_EQ(std::bit_cast<uint32_t>(nan), 0x7fc0'0000u);
  const float none = FoldValues<float>(ReduceOp::kProduct, {kInfinity}, {0})[0];
  EXPECT_EQ(std::bit_cast<uint32_t>(none), 0x7fc0'0000u);
}

TEST(ReductionValuesTest, ZerosKeepTheEarlierSign) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const std::vector<float> zeros =
        FoldValues<float>(op, {0.0f, -0.0f}, {-0.0f, 0.0f});
    EXPECT_FALSE(std::signbit(zeros[0])) << Name(op);
    EXPECT_TRUE(std::signbit(zeros[1])) << Name(op);
  }
}

TEST(ReductionValuesTest, SixteenBitFloatsRoundOnceAtTheEnd) {
  // 2048 + 1 + 1: rounded in between, the ones would be lost.
  const std::vector<Float16> x = {ToFloat16(2048)};
  const std::vector<Float16> one = {ToFloat16(1)};
  const void* const inputs[] = {x.data(), one.data(), one.data()};
  Float16 result;
  void* const outputs[] = {&result};
  Reduction(DataType::kFloat16, ReduceOp::kSum, 3).Fold(inputs, outputs, 1);
  EXPECT_EQ(ToFloat(result), 2050);
}

TEST(ReductionValuesTest, IntegersWrap) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(FoldValues<int32_t>(ReduceOp::kSum, {kMax, kMin}, {1, -1}),
            (std::vector<int32_t>{kMin, kMax}));
  EXPECT_EQ(FoldValues<int32_t>(ReduceOp::kProduct, {kMin, 65536}, {-1, 65537}),
            (std::vector<int32_t>{kMin, 65536}));
  EXPECT_EQ(FoldValues<uint8_t>(ReduceOp::kSum, {200}, {100}),
            (std::vector<uint8_t>{44}));
}

TEST(ReductionValuesTest, IntegerAveragesAreOfTheExactSumTowardZero) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(
      FoldValues<int32_t>(ReduceOp::kAverage, {kMax, -3, 3}, {kMax, -4, 4}),
      (std::vector<int32_t>{kMax, -3, 3}));
  EXPECT_EQ(FoldValues<uint8_t>(ReduceOp::kAverage, {255, 0}, {254, 1}),
            (std::vector<uint8_t>{254, 0}));
}

constexpr std::byte kGuard{0x5a};

using Copier = void (*)(const std::byte* from, std::byte* to, int64_t bytes);

// Whether a copy of `size` bytes, between memory at these offsets from a line,
// copies them and nothing else.
bool Copies(Copier copier, int64_t size, int64_t from_offset,
            int64_t to_offset) {
  alignas(kCacheLineBytes) std::byte from[8 * kCacheLineBytes];
  alignas(kCacheLineBytes) std::byte to[8 * kCacheLineBytes];
  for (size_t i = 0; i < sizeof(from); ++i) from[i] = std::byte(i % 251);
  std::fill(std::begin(to), std::end(to), kGuard);
  std::vector<std::byte> want(std::begin(to), std::end(to));
  std::copy_n(from + from_offset, size, want.begin() + to_offset);
  copier(from + from_offset, to + to_offset, size);
  FinishStreaming();
  return std::equal(want.begin(), want.end(), to);
}

TEST(StreamCopyTest, EverySizeAndAlignment) {
  for (int64_t size = 0; size <= 5 * kCacheLineBytes; ++size) {
    for (int64_t to = 0; to < kCacheLineBytes; ++to) {
      for (const int64_t from : {0, 1, 16, 63}) {
        ASSERT_TRUE(Copies(StreamCopy, size, from, to))
            << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

// The controls.
TEST(StreamCopyTest, RejectsAByteTooFewOrTooMany) {
  const Copier too_few = [](const std::byte* from, std::byte* to,
                            int64_t bytes) { StreamCopy(from, to, bytes - 1); };
  const Copier too_many = [](const std::byte* from, std::byte* to,
                             int64_t bytes) {
    StreamCopy(from, to, bytes + 1);
  };
  EXPECT_TRUE(Copies(StreamCopy, 100, 1, 3));
  EXPECT_FALSE(Copies(too_few, 100, 1, 3));
  EXPECT_FALSE(Copies(too_many, 100, 1, 3));
}

}  // namespace
}  // namespace lockstep
