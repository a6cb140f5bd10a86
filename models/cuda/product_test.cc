#include "models/cuda/product.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

// Integers, whose products and sums are exact.
std::vector<float> Integers(int64_t size, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(size));
  for (float& x : values) {
    seed = seed * 1664525 + 1013904223;
    x = static_cast<float>((seed >> 16) % 7) - 3;
  }
  return values;
}

std::vector<float> OnHost(const ProductShape& s, const std::vector<float>& a,
                          const std::vector<float>& b,
                          const std::vector<float>& bias) {
  std::vector<float> c;
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    for (int64_t i = 0; i < s.rows; ++i) {
      for (int64_t j = 0; j < s.columns; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < s.inner; ++k) {
          const int64_t in_a = s.transpose_a ? k * s.rows + i : i * s.inner + k;
          const int64_t in_b =
              s.transpose_b ? j * s.inner + k : k * s.columns + j;
          sum += a[static_cast<size_t>(batch * s.rows * s.inner + in_a)] *
                 b[static_cast<size_t>(batch * s.inner * s.columns + in_b)];
        }
        const float biased =
            s.scale * sum + (bias.empty() ? 0 : bias[static_cast<size_t>(j)]);
        c.push_back(s.relu ? std::max(biased, 0.0f) : biased);
      }
    }
  }
  return c;
}

class ProductTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto handle = CreateCublasLt();
    ASSERT_THAT(handle, IsOk());
    handle_ = *std::move(handle);
  }

  void ExpectExact(ProductShape shape, bool has_bias) {
    SCOPED_TRACE(testing::Message()
                 << shape.batch << " of " << shape.rows << "x" << shape.inner
                 << "x" << shape.columns << " " << shape.transpose_a
                 << shape.transpose_b << has_bias << shape.relu << " "
                 << Name(shape.type));
    const std::vector<float> a =
        Integers(shape.batch * shape.rows * shape.inner, 1);
    const std::vector<float> b =
        Integers(shape.batch * shape.inner * shape.columns, 2);
    const std::vector<float> bias = Integers(shape.columns, 3);
    const DataType written = shape.written.value_or(shape.type);
    TestActivations device_a(shape.type, a), device_b(shape.type, b);
    TestActivations device_bias(written, bias);
    TestActivations c(
        written,
        std::vector<float>(
            static_cast<size_t>(shape.batch * shape.rows * shape.columns), 99));
    if (has_bias) shape.bias = device_bias.data();
    const absl::StatusOr<Product> product =
        Product::Create(handle_.get(), shape);
    ASSERT_THAT(product, IsOk());
    TestVector<char> workspace(std::vector<char>(
        static_cast<size_t>(product->workspace_bytes() + 64)));
    // A step's memory is aligned to 64 bytes.
    ASSERT_THAT(product->Execute(device_a.data(), device_b.data(), c.data(),
                                 workspace.data() + 64, nullptr),
                IsOk());
    EXPECT_EQ(c.Read(),
              Rounded(written, OnHost(shape, a, b,
                                      has_bias ? bias : std::vector<float>())));
  }

  CublasLtOwner<cublasLtHandle_t> handle_;
};

TEST_F(ProductTest, EveryTranspositionIsExact) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const int64_t batch : {1, 3}) {
        // Matrices of 7x5 floats: the second of a batch is aligned to 4 bytes.
        ExpectExact({.batch = batch,
                     .rows = 7,
                     .columns = 9,
                     .inner = 5,
                     .transpose_a = transpose_a,
                     .transpose_b = transpose_b,
                     .scale = 0.5f},
                    /*has_bias=*/false);
      }
    }
  }
}

TEST_F(ProductTest, BiasAndReluAreFused) {
  for (const bool bias : {false, true}) {
    for (const bool relu : {false, true}) {
      ExpectExact({.rows = 6,
                   .columns = 10,
                   .inner = 33,
                   .transpose_b = true,
                   .relu = relu},
                  bias);
    }
  }
}

// Small integers have the same products in TF32.
TEST_F(ProductTest, Tf32IsExactToo) {
  ExpectExact({.rows = 8, .columns = 16, .inner = 24, .tf32 = true},
              /*has_bias=*/true);
}

// The sums go beyond the integers that bfloat16 holds: they are rounded once,
// or written in float32. The second matrix of a batch is aligned to 2 bytes.
TEST_F(ProductTest, SixteenBitsAreSummedInFloat32) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const DataType written : {type, DataType::kFloat32}) {
      for (const bool transposed : {false, true}) {
        ExpectExact({.batch = 3,
                     .rows = 7,
                     .columns = 9,
                     .inner = 5,
                     .transpose_a = transposed,
                     .transpose_b = !transposed,
                     .scale = 0.5f,
                     .type = type,
                     .written = written},
                    /*has_bias=*/false);
      }
      ExpectExact({.rows = 8,
                   .columns = 16,
                   .inner = 999,
                   .transpose_a = true,
                   .type = type,
                   .written = written},
                  /*has_bias=*/false);
    }
    ExpectExact({.rows = 6,
                 .columns = 10,
                 .inner = 999,
                 .transpose_b = true,
                 .relu = true,
                 .type = type},
                /*has_bias=*/true);
  }
}

TEST_F(ProductTest, AnErrorNamesTheProduct) {
  EXPECT_THAT(Product::Create(handle_.get(), {.name = "head", .rows = 0}),
              StatusIs(absl::StatusCode::kInternal,
                       testing::StartsWith("head: cublasLt")));
}

}  // namespace
}  // namespace lockstep
