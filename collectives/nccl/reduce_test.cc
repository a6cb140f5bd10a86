// Compares the reduction bit for bit with the reference, in every size,
// alignment and shape, and with the steps of the CPU's reduction, for every
// type and operation. With the stand-in runtime the tests need no GPU, with the
// CUDA runtime they need one.
#include "collectives/nccl/reduce.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr ReduceOp kTwoOperandOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                                       ReduceOp::kMin, ReduceOp::kMax};

int64_t CountOf(const Bytes& elements, DataType type) {
  return static_cast<int64_t>(elements.size()) / SizeOf(type);
}

// Appends an element given by its bits.
void AppendBits(uint64_t bits, DataType type, Bytes& elements) {
  const size_t at = elements.size();
  elements.resize(at + static_cast<size_t>(SizeOf(type)));
  std::memcpy(elements.data() + at, &bits, static_cast<size_t>(SizeOf(type)));
}
uint64_t BitsOf(double value, DataType type) {
  uint64_t bits = 0;
  SetElement(type, value, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

class ReduceTest : public GpuTest,
                   public testing::WithParamInterface<DataType> {
 protected:
  static DataType type() { return GetParam(); }

  // Reduces copies of `a` and `b` on the device, with `a` as the accumulator,
  // and compares with the reference. Offsets are in bytes.
  static void Check(ReduceOp op, const Bytes& a, const Bytes& b,
                    int64_t a_offset = 0, int64_t b_offset = 0) {
    const int64_t size = CountOf(a, type());
    SCOPED_TRACE(absl::StrCat(Name(op), ", ", size, " elements at ", a_offset,
                              " and ", b_offset));
    const auto accumulator = MakeDeviceMemory(a, a_offset);
    const auto incoming = MakeDeviceMemory(b, b_offset);
    ASSERT_THAT(accumulator, IsOk());
    ASSERT_THAT(incoming, IsOk());
    const Buffer result((*accumulator)->data(), size, type());
    ASSERT_THAT(Reduce(op, result, {(*incoming)->data(), size, type()}, result,
                       1, nullptr),
                IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const absl::StatusOr<Bytes> got = (*accumulator)->Read();
    ASSERT_THAT(got, IsOk());
    const Bytes want = Reference(type(), op, FoldOrder::kChain, {a, b});
    EXPECT_EQ(FirstDifference(*got, want, type()), -1);
    EXPECT_THAT((*incoming)->Read(), IsOkAndHolds(b));
  }
};

TEST_P(ReduceTest, EqualsTheReferenceAtEverySize) {
  for (const ReduceOp op : kTwoOperandOps) {
    for (const int64_t size :
         {0, 1, 3, 7, 8, 15, 16, 17, 31, 255, 256, 257, 1000, 4099, 65537}) {
      const std::vector<Bytes> inputs = DrawInputs(type(), 2, size);
      Check(op, inputs[0], inputs[1]);
    }
  }
}

TEST_P(ReduceTest, EqualsTheReferenceAtEveryAlignment) {
  for (const int64_t size : {1, 7, 8, 17, 40}) {
    const std::vector<Bytes> inputs = DrawInputs(type(), 2, size);
    for (int64_t a = 0; a < 16; a += SizeOf(type())) {
      for (int64_t b = 0; b < 16; b += SizeOf(type())) {
        Check(ReduceOp::kSum, inputs[0], inputs[1], a, b);
      }
    }
  }
}

// Tests every pair of: zeros, subnormals, the smallest normal, 1 and a value
// that rounding drops from it, the greatest, infinities and NaN.
TEST_P(ReduceTest, EqualsTheReferenceAtSpecialValues) {
  const uint64_t sign = uint64_t{1} << (8 * SizeOf(type()) - 1);
  const uint64_t one = BitsOf(1, type());
  const uint64_t infinity =
      BitsOf(std::numeric_limits<double>::infinity(), type());
  const uint64_t least_normal = infinity & (~infinity + 1);
  std::vector<uint64_t> values = {
      0,        1,           least_normal - 1,           least_normal,
      one,      one + 1,     BitsOf(1.0 / 4096, type()), infinity - 1,
      infinity, infinity + 1};
  for (size_t i = 0, n = values.size(); i < n; ++i) {
    values.push_back(values[i] | sign);
  }
  Bytes a, b;
  for (const uint64_t x : values) {
    for (const uint64_t y : values) {
      AppendBits(x, type(), a);
      AppendBits(y, type(), b);
    }
  }
  for (const ReduceOp op : kTwoOperandOps) {
    Check(op, a, b);
    Check(op, a, b, 0, SizeOf(type()));
  }
}

TEST_P(ReduceTest, RefusesBadArguments) {
  using absl::StatusCode::kInvalidArgument;
  const auto memory = MakeDeviceMemory(Bytes(256));
  ASSERT_THAT(memory, IsOk());
  std::byte* const x = (*memory)->data();
  std::byte* const y = x + 128;
  const int64_t size = SizeOf(type());
  const auto reduce = [](std::byte* input, int64_t in, std::byte* result,
                         int64_t out, ReduceOp op = ReduceOp::kSum) {
    return Reduce(op, {result, out, type()}, {input, in, type()},
                  {result, out, type()}, 1, nullptr);
  };
  EXPECT_THAT(reduce(x, 3, y, 4), StatusIs(kInvalidArgument, HasSubstr("3")));
  EXPECT_THAT(reduce(x, 3, x + 2 * size, 3),
              StatusIs(kInvalidArgument, HasSubstr("overlap")));
  EXPECT_THAT(reduce(x + 2 * size, 3, x, 3),
              StatusIs(kInvalidArgument, HasSubstr("overlap")));
  EXPECT_THAT(reduce(x, 3, x + 3 * size, 3), IsOk());
  EXPECT_THAT(reduce(x + 1, 3, y, 3),
              StatusIs(kInvalidArgument, HasSubstr("aligned")));
  EXPECT_THAT(reduce(y, 3, x + 1, 3),
              StatusIs(kInvalidArgument, HasSubstr("aligned")));
  EXPECT_THAT(reduce(x, 3, y, 3, static_cast<ReduceOp>(9)),
              StatusIs(kInvalidArgument, HasSubstr("9")));
  const Buffer data(x, 3, type());
  const Buffer other(x + 32, 3, DataType::kInt64);
  EXPECT_THAT(Reduce(ReduceOp::kSum, other, data, data, 1, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("int64")));
  EXPECT_THAT(Reduce(ReduceOp::kSum, data, data, other, 1, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("int64")));
  EXPECT_THAT(Reduce(ReduceOp::kSum, data, data, data, 2, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("divisor of 2 for sum")));
  EXPECT_THAT(Reduce(ReduceOp::kAverage, data, data, data, 0, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("divisor of 0")));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  // A null buffer has no elements.
  const Buffer none(nullptr, 0, type());
  EXPECT_THAT(Reduce(ReduceOp::kSum, none, none, none, 1, nullptr), IsOk());
}

// The control: the comparison detects one wrong bit, and a lost NaN.
TEST_P(ReduceTest, ComparisonRejectsOneWrongBit) {
  const uint64_t nan = BitsOf(std::numeric_limits<double>::quiet_NaN(), type());
  const uint64_t sign = uint64_t{1} << (8 * SizeOf(type()) - 1);
  const auto elements = [](const std::vector<uint64_t>& values) {
    Bytes bytes;
    for (const uint64_t bits : values) AppendBits(bits, type(), bytes);
    return bytes;
  };
  const uint64_t three = BitsOf(3, type());
  const Bytes a = elements({three, nan, three});
  EXPECT_EQ(FirstDifference(a, elements({three, nan | sign, three}), type()),
            -1);
  EXPECT_EQ(FirstDifference(a, elements({three, 0, three}), type()), 1);
  EXPECT_EQ(FirstDifference(a, elements({three, nan, three ^ 1}), type()), 2);
}

INSTANTIATE_TEST_SUITE_P(Floats, ReduceTest,
                         testing::Values(DataType::kFloat64, DataType::kFloat32,
                                         DataType::kFloat16,
                                         DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

class ReduceTypesTest
    : public GpuTest,
      public testing::WithParamInterface<std::tuple<DataType, ReduceOp>> {
 protected:
  static constexpr int kRanks = 3;

  // Returns `earlier` op `input`, computed on the device.
  static absl::StatusOr<Bytes> Reduced(const Bytes& earlier,
                                       DataType earlier_type,
                                       const Bytes& input, DataType result_type,
                                       int divisor) {
    const auto [type, op] = GetParam();
    const int64_t count = CountOf(input, type);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto a, MakeDeviceMemory(earlier));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto b, MakeDeviceMemory(input));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const auto c, MakeDeviceMemory(Bytes(
                          static_cast<size_t>(count * SizeOf(result_type)))));
    LOCKSTEP_RETURN_IF_ERROR(
        Reduce(op, {a->data(), count, earlier_type}, {b->data(), count, type},
               {c->data(), count, result_type}, divisor, nullptr));
    return c->Read();
  }
};

TEST_P(ReduceTypesTest, EqualsTheCpusReduction) {
  const auto [type, op] = GetParam();
  const DataType accumulator = AccumulatorOf(type, op);
  const Reduction reduction(type, op, kRanks);
  ASSERT_EQ(accumulator, reduction.accumulator());
  constexpr int64_t kCount = 1003;
  const std::vector<Bytes> inputs = DrawInputs(type, kRanks, kCount);
  const Bytes& x = inputs[0];
  const Bytes& y = inputs[1];
  const Bytes& z = inputs[2];
  const int divisor = op == ReduceOp::kAverage ? kRanks : 1;
  const auto expect = [](const absl::StatusOr<Bytes>& got, const Bytes& want,
                         DataType result_type) {
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(FirstDifference(*got, want, result_type), -1);
  };

  Bytes want(static_cast<size_t>(kCount * SizeOf(accumulator)));
  Bytes finished(x.size());
  reduction.Begin(x.data(), want.data(), kCount);
  reduction.Accumulate(want.data(), y.data(), want.data(), kCount);
  expect(Reduced(x, type, y, accumulator, 1), want, accumulator);

  // One more step, with the result as an accumulator and as elements.
  reduction.Finish(want.data(), finished.data(), kCount);
  expect(Reduced(x, type, y, type, divisor), finished, type);
  Bytes longer = want;
  reduction.Accumulate(want.data(), z.data(), longer.data(), kCount);
  expect(Reduced(want, accumulator, z, accumulator, 1), longer, accumulator);
  reduction.Finish(longer.data(), finished.data(), kCount);
  expect(Reduced(want, accumulator, z, type, divisor), finished, type);
}

INSTANTIATE_TEST_SUITE_P(All, ReduceTypesTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::ValuesIn(kAllReduceOps)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               Name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace lockstep
