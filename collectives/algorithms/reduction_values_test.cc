// Reductions whose answer is known.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "collectives/algorithms/half.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
