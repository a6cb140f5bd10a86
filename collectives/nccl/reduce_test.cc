// The reduction against a plain loop and against the CPU's, for every type,
// operation and step, bit for bit. Linked with the stand-in runtime it needs no
// GPU, with the CUDA runtime it needs one.
#include "collectives/nccl/reduce.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/nccl/cuda_handles.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kSizes[] = {0,  1,   3,   7,   8,    15,   16,   17,
                              31, 255, 256, 257, 1000, 4099, 65537};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax};

// Each type's bits, and its conversions on the host.
struct FloatFormat {
  static constexpr DataType kType = DataType::kFloat32;
  using Type = float;
  using Bits = uint32_t;
  static float Widen(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits Round(float value) { return std::bit_cast<Bits>(value); }
};
struct HalfFormat {
  static constexpr DataType kType = DataType::kFloat16;
  using Type = __half;
  using Bits = uint16_t;
  static float Widen(Bits bits) { return __half2float(__ushort_as_half(bits)); }
  static Bits Round(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};
struct Bfloat16Format {
  static constexpr DataType kType = DataType::kBFloat16;
  using Type = __nv_bfloat16;
  using Bits = uint16_t;
  static float Widen(Bits bits) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  }
  static Bits Round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

// The definition, on the CPU.
float Combine(ReduceOp op, float a, float b) {
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  if (std::isnan(a) || std::isnan(b)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
}

// `bytes` of device memory that begin `offset` bytes past a 256-byte boundary,
// with room before and behind to see whether it stays untouched.
class DeviceBytes {
 public:
  DeviceBytes(int64_t bytes, int64_t offset)
      : image_(kRoom + offset + bytes + kRoom, kCanary),
        start_(kRoom + offset),
        bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&memory_, image_.size()), cudaSuccess);
  }
  ~DeviceBytes() { EXPECT_EQ(cudaFree(memory_), cudaSuccess); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return memory_ + start_; }

  void Write(const void* from) {
    if (bytes_ > 0) std::memcpy(image_.data() + start_, from, bytes_);
    EXPECT_EQ(cudaMemcpy(memory_, image_.data(), image_.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  // Copies the bytes to `to`; whether what is around them is untouched.
  bool Read(void* to) {
    EXPECT_EQ(cudaMemcpy(image_.data(), memory_, image_.size(),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    if (bytes_ > 0) std::memcpy(to, image_.data() + start_, bytes_);
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    const auto begin = image_.begin() + start_;
    return std::all_of(image_.begin(), begin, is_canary) &&
           std::all_of(begin + bytes_, image_.end(), is_canary);
  }

 private:
  static constexpr std::byte kCanary{0xa5};
  static constexpr int64_t kRoom = 256;

  std::vector<std::byte> image_;
  const int64_t start_;
  const int64_t bytes_;
  std::byte* memory_ = nullptr;
};

template <typename Format>
class ReduceTest : public GpuTest {
 public:
  using T = typename Format::Type;
  using Bits = typename Format::Bits;

  static std::vector<Bits> Random(int64_t size, uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<Bits> bits(size);
    for (Bits& b : bits) b = static_cast<Bits>(generator());
    return bits;
  }

  // Reduces copies of `a` and `b` on the device, `a` being the accumulator, and
  // compares with the CPU. Offsets are in bytes.
  static void Check(ReduceOp op, const std::vector<Bits>& a,
                    const std::vector<Bits>& b, int64_t a_offset = 0,
                    int64_t b_offset = 0, const ReduceShape& shape = {}) {
    SCOPED_TRACE(absl::StrCat("op ", static_cast<int>(op), ", ", a.size(),
                              " elements at ", a_offset, " and ", b_offset,
                              ", max_blocks ", shape.max_blocks, " of ",
                              shape.threads_per_block));
    const int64_t size = static_cast<int64_t>(a.size());
    const int64_t bytes = size * static_cast<int64_t>(sizeof(T));
    DeviceBytes accumulator(bytes, a_offset);
    DeviceBytes incoming(bytes, b_offset);
    accumulator.Write(a.data());
    incoming.Write(b.data());
    ASSERT_THAT(
        Reduce(op, {accumulator.data(), size, Format::kType},
               {incoming.data(), size, Format::kType},
               {accumulator.data(), size, Format::kType}, 1, nullptr, shape),
        IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<Bits> got(a.size());
    EXPECT_TRUE(accumulator.Read(got.data())) << "wrote outside";
    EXPECT_TRUE(IsCombined(op, a, b, got));
    EXPECT_TRUE(incoming.Read(got.data())) << "wrote beside the operand";
    EXPECT_EQ(got, b);
  }

  // Says which element of `got` is not `a` op `b`; success if there is none.
  static testing::AssertionResult IsCombined(ReduceOp op,
                                             const std::vector<Bits>& a,
                                             const std::vector<Bits>& b,
                                             const std::vector<Bits>& got) {
    for (size_t i = 0; i < a.size(); ++i) {
      const float x = Format::Widen(a[i]);
      const float y = Format::Widen(b[i]);
      const Bits want = Format::Round(Combine(op, x, y));
      const bool same = std::isnan(Format::Widen(want))
                            ? std::isnan(Format::Widen(got[i]))
                            : got[i] == want;
      if (same) continue;
      return testing::AssertionFailure()
             << "element " << i << ": " << x << " and " << y << " gave bits "
             << got[i] << ", want " << want;
    }
    return testing::AssertionSuccess();
  }
};

struct FormatNames {
  template <typename Format>
  static std::string GetName(int) {
    if (std::is_same_v<Format, FloatFormat>) return "Float32";
    return std::is_same_v<Format, HalfFormat> ? "Float16" : "Bfloat16";
  }
};
using Formats = testing::Types<FloatFormat, HalfFormat, Bfloat16Format>;
TYPED_TEST_SUITE(ReduceTest, Formats, FormatNames);

TYPED_TEST(ReduceTest, EqualsTheCpuAtEverySize) {
  for (const ReduceOp op : kOps) {
    for (const int64_t size : kSizes) {
      this->Check(op, this->Random(size, 1), this->Random(size, 2));
    }
  }
}

TYPED_TEST(ReduceTest, EqualsTheCpuAtEveryAlignment) {
  constexpr int64_t kElement = sizeof(typename TypeParam::Type);
  for (const int64_t size : {1, 7, 8, 17, 40}) {
    const auto a = this->Random(size, 3);
    const auto b = this->Random(size, 4);
    for (int64_t a_offset = 0; a_offset < 16; a_offset += kElement) {
      for (int64_t b_offset = 0; b_offset < 16; b_offset += kElement) {
        this->Check(ReduceOp::kSum, a, b, a_offset, b_offset);
      }
    }
  }
}

TYPED_TEST(ReduceTest, EqualsTheCpuInEveryShape) {
  const auto a = this->Random(1003, 5);
  const auto b = this->Random(1003, 6);
  for (const int max_blocks : {0, 1, 2, 3, 1000}) {
    for (const int threads : {1, 31, 32, 33, 256, 1024}) {
      this->Check(ReduceOp::kSum, a, b, 12, 12, {max_blocks, threads});
    }
  }
}

// Every pair of: zeros, subnormals, the least normal, 1 and what it rounds
// away, the greatest, infinities and NaN.
TYPED_TEST(ReduceTest, EqualsTheCpuAtSpecialValues) {
  using Bits = typename TypeParam::Bits;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const Bits one = TypeParam::Round(1.0f);
  const Bits infinity =
      TypeParam::Round(std::numeric_limits<float>::infinity());
  const Bits unit =
      static_cast<Bits>(infinity & (~infinity + 1));  // The least normal.
  std::vector<Bits> values = {
      Bits{0},
      Bits{1},
      static_cast<Bits>(unit - 1),
      unit,
      one,
      static_cast<Bits>(one + 1),
      TypeParam::Round(1.0f / 4096),
      static_cast<Bits>(infinity - 1),
      infinity,
      static_cast<Bits>(infinity + 1),
  };
  for (size_t i = 0, n = values.size(); i < n; ++i) {
    values.push_back(values[i] | kSign);
  }
  std::vector<Bits> a, b;
  for (const Bits x : values) {
    for (const Bits y : values) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  for (const ReduceOp op : kOps) {
    this->Check(op, a, b);
    this->Check(op, a, b, 0, sizeof(Bits));
  }
}

TYPED_TEST(ReduceTest, RefusesBadArguments) {
  using T = typename TypeParam::Type;
  using absl::StatusCode::kInvalidArgument;
  DeviceBytes a(64, 0);
  DeviceBytes b(64, 0);
  T* const x = static_cast<T*>(a.data());
  T* const y = static_cast<T*>(b.data());
  const auto reduce = [](T* input, int64_t in, T* result, int64_t out,
                         ReduceOp op = ReduceOp::kSum,
                         const ReduceShape& shape = {}) {
    constexpr DataType kType = TypeParam::kType;
    return Reduce(op, {result, out, kType}, {input, in, kType},
                  {result, out, kType}, 1, nullptr, shape);
  };
  EXPECT_THAT(reduce(x, 3, y, 4), StatusIs(kInvalidArgument, HasSubstr("3")));
  EXPECT_THAT(reduce(x, 3, x + 2, 3),
              StatusIs(kInvalidArgument, HasSubstr("overlap")));
  EXPECT_THAT(reduce(x + 2, 3, x, 3),
              StatusIs(kInvalidArgument, HasSubstr("overlap")));
  EXPECT_THAT(reduce(x, 3, x + 3, 3), IsOk());
  T* const odd = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(x) + 1);
  EXPECT_THAT(reduce(odd, 3, y, 3),
              StatusIs(kInvalidArgument, HasSubstr("aligned")));
  EXPECT_THAT(reduce(y, 3, odd, 3),
              StatusIs(kInvalidArgument, HasSubstr("aligned")));
  EXPECT_THAT(reduce(x, 3, y, 3, static_cast<ReduceOp>(9)),
              StatusIs(kInvalidArgument, HasSubstr("9")));
  for (const ReduceShape& shape :
       {ReduceShape{-1, 256}, ReduceShape{0, 0}, ReduceShape{0, 1025}}) {
    EXPECT_THAT(reduce(x, 3, y, 3, ReduceOp::kSum, shape),
                StatusIs(kInvalidArgument, HasSubstr("threads_per_block")));
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TYPED_TEST(ReduceTest, RefusesTypesAndDivisorsThatDoNotFit) {
  using absl::StatusCode::kInvalidArgument;
  DeviceBytes memory(64, 0);
  const Buffer data(memory.data(), 3, TypeParam::kType);
  const Buffer other(static_cast<std::byte*>(memory.data()) + 32, 3,
                     DataType::kInt64);
  EXPECT_THAT(Reduce(ReduceOp::kSum, other, data, data, 1, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("int64")));
  EXPECT_THAT(Reduce(ReduceOp::kSum, data, data, other, 1, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("int64")));
  EXPECT_THAT(Reduce(ReduceOp::kSum, data, data, data, 2, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("divisor of 2 for sum")));
  EXPECT_THAT(Reduce(ReduceOp::kAverage, data, data, data, 0, nullptr),
              StatusIs(kInvalidArgument, HasSubstr("divisor of 0")));
}

TYPED_TEST(ReduceTest, NullIsNoElements) {
  const Buffer none(nullptr, 0, TypeParam::kType);
  EXPECT_THAT(Reduce(ReduceOp::kSum, none, none, none, 1, nullptr), IsOk());
}

// The control: the comparison above sees one wrong bit, and a NaN that is lost.
TYPED_TEST(ReduceTest, ComparisonRejectsOneWrongBit) {
  using Bits = typename TypeParam::Bits;
  const Bits nan = TypeParam::Round(std::numeric_limits<float>::quiet_NaN());
  const std::vector<Bits> a = {TypeParam::Round(1.0f), nan};
  const std::vector<Bits> b = {TypeParam::Round(2.0f), Bits{0}};
  std::vector<Bits> got = {TypeParam::Round(3.0f), nan};
  EXPECT_TRUE(this->IsCombined(ReduceOp::kSum, a, b, got));
  got[0] ^= 1;
  EXPECT_FALSE(this->IsCombined(ReduceOp::kSum, a, b, got));
  got = {TypeParam::Round(3.0f), Bits{0}};
  EXPECT_FALSE(this->IsCombined(ReduceOp::kSum, a, b, got));
}

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
