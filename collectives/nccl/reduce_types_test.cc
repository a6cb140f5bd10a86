// Every type, operation and step of a reduction against the CPU's, bit for bit.
// Linked with the stand-in runtime it needs no GPU, with the CUDA runtime it
// needs one.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/half.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "collectives/nccl/cuda_handles.h"
#include "collectives/nccl/reduce.h"
#include "collectives/reduce_op.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

bool IsNan(const std::byte* from, DataType type) {
  double value = 0;
  if (type == DataType::kFloat64) value = Load<double>(from);
  if (type == DataType::kFloat32) value = Load<float>(from);
  if (type == DataType::kFloat16) value = ToFloat(Load<Float16>(from));
  if (type == DataType::kBFloat16) value = ToFloat(Load<BFloat16>(from));
  return value != value;
}

// The first element that differs, or -1. All NaN are one.
int64_t FirstDifference(const Bytes& a, const Bytes& b, DataType type) {
  const int64_t size = SizeOf(type);
  for (int64_t i = 0; i * size < static_cast<int64_t>(a.size()); ++i) {
    const std::byte* const x = a.data() + i * size;
    const std::byte* const y = b.data() + i * size;
    if (std::memcmp(x, y, static_cast<size_t>(size)) == 0) continue;
    if (!IsNan(x, type) || !IsNan(y, type)) return i;
  }
  return -1;
}

// Any bits; every 7th element is zero or minus zero, so that signs count.
Bytes RandomElements(DataType type, uint32_t seed, int64_t count) {
  std::mt19937 generator(seed);
  const int64_t size = SizeOf(type);
  Bytes bytes(static_cast<size_t>(count * size));
  for (std::byte& b : bytes) b = static_cast<std::byte>(generator());
  for (int64_t i = 0; i < count; i += 7) {
    std::memset(bytes.data() + i * size, 0, static_cast<size_t>(size));
    bytes[static_cast<size_t>(i * size + size - 1)] =
        static_cast<std::byte>(generator() % 2 << 7);
  }
  return bytes;
}

class ReduceTypesTest
    : public GpuTest,
      public testing::WithParamInterface<std::tuple<DataType, ReduceOp>> {
 protected:
  static constexpr int kRanks = 3;

  // `earlier` op `input` on the device.
  static Bytes Reduced(const Bytes& earlier, DataType earlier_type,
                       const Bytes& input, DataType result_type, int divisor) {
    const auto [type, op] = GetParam();
    const int64_t count = static_cast<int64_t>(input.size()) / SizeOf(type);
    Bytes result(static_cast<size_t>(count * SizeOf(result_type)));
    const auto a = AllocateDeviceMemory(static_cast<int64_t>(earlier.size()));
    const auto b = AllocateDeviceMemory(static_cast<int64_t>(input.size()));
    const auto c = AllocateDeviceMemory(static_cast<int64_t>(result.size()));
    EXPECT_EQ(cudaMemcpy(a->get(), earlier.data(), earlier.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpy(b->get(), input.data(), input.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_THAT(
        Reduce(op, {a->get(), count, earlier_type}, {b->get(), count, type},
               {c->get(), count, result_type}, divisor, nullptr),
        IsOk());
    EXPECT_EQ(cudaMemcpy(result.data(), c->get(), result.size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return result;
  }
};

TEST_P(ReduceTypesTest, EqualsTheCpusReduction) {
  const auto [type, op] = GetParam();
  const DataType accumulator = AccumulatorOf(type, op);
  const Reduction reduction(type, op, kRanks);
  ASSERT_EQ(accumulator, reduction.accumulator());
  constexpr int64_t kCount = 1003;
  const Bytes x = RandomElements(type, 1, kCount);
  const Bytes y = RandomElements(type, 2, kCount);
  const Bytes z = RandomElements(type, 3, kCount);
  const int divisor = op == ReduceOp::kAverage ? kRanks : 1;

  Bytes want(static_cast<size_t>(kCount * SizeOf(accumulator)));
  Bytes finished(x.size());
  reduction.Begin(x.data(), want.data(), kCount);
  reduction.Accumulate(want.data(), y.data(), want.data(), kCount);
  const Bytes partial = Reduced(x, type, y, accumulator, 1);
  EXPECT_EQ(FirstDifference(partial, want, accumulator), -1);

  // One step more, kept as an accumulator and finished.
  reduction.Finish(want.data(), finished.data(), kCount);
  EXPECT_EQ(FirstDifference(Reduced(x, type, y, type, divisor), finished, type),
            -1);
  Bytes longer = want;
  reduction.Accumulate(want.data(), z.data(), longer.data(), kCount);
  EXPECT_EQ(FirstDifference(Reduced(want, accumulator, z, accumulator, 1),
                            longer, accumulator),
            -1);
  reduction.Finish(longer.data(), finished.data(), kCount);
  const Bytes got = Reduced(want, accumulator, z, type, divisor);
  EXPECT_EQ(FirstDifference(got, finished, type), -1);
}

// The control: the comparison sees one wrong bit, and a NaN that is lost.
TEST(FirstDifferenceTest, SeesOneBitAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto bytes = [](std::vector<float> values) {
    const auto* const begin = reinterpret_cast<std::byte*>(values.data());
    return Bytes(begin, begin + values.size() * sizeof(float));
  };
  const Bytes a = bytes({1, nan, 3});
  EXPECT_EQ(FirstDifference(a, bytes({1, -nan, 3}), DataType::kFloat32), -1);
  EXPECT_EQ(FirstDifference(a, bytes({1, 2, 3}), DataType::kFloat32), 1);
  Bytes b = a;
  b[8] ^= std::byte{1};
  EXPECT_EQ(FirstDifference(a, b, DataType::kFloat32), 2);
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
