// Every instruction set gives the bits of the baseline, which reduction_test
// cannot see: it runs what the processor has.
#include "collectives/algorithms/reduction_kernels.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/half.h"
#include "collectives/algorithms/reduction_reference.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
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

}  // namespace
}  // namespace lockstep
