// Multiplies matrices of small integers by cuBLASLt or its stand-in. Every type
// represents the sums exactly, so the results are compared bit for bit with a
// loop on the host.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "standin/cublas/product_fixture.h"

namespace lockstep {
namespace {

// Memory for a matrix, with integers in [-2, 2], also between its columns.
std::vector<double> Integers(const TestMatrix& matrix, uint32_t seed) {
  std::vector<double> values(matrix.size());
  for (double& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<int>((seed >> 16) % 5) - 2;
  }
  return values;
}

// The contents of all matrices, and of the bias.
struct Contents {
  explicit Contents(const TestProduct& p)
      : a(Integers(p.a, 1)), b(Integers(p.b, 2)), d(Integers(p.d, 3)) {
    const bool of_b = p.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    for (int64_t i = 0; i < (of_b ? p.d.cols : p.d.rows); ++i) {
      bias.push_back(static_cast<double>(i % 3 - 1));
    }
  }
  std::vector<double> a, b, d, bias;
};

// Computes the product on the host. Elements between D's columns stay.
void Multiply(const TestProduct& p, Contents& c) {
  const int64_t k = p.transa ? p.a.rows : p.a.cols;
  const bool has_bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                        p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  const bool has_relu = p.epilogue == CUBLASLT_EPILOGUE_RELU ||
                        p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  const auto b_at = [&](int64_t l, int64_t j, int64_t batch) {
    return c.b[p.transb ? p.b.PlaceOf(j, l, batch) : p.b.PlaceOf(l, j, batch)];
  };
  for (int64_t batch = 0; batch < p.d.batch_count; ++batch) {
    for (int64_t i = 0; i < p.d.rows; ++i) {
      for (int64_t j = 0; j < p.d.cols; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += b_at(l, j, batch) * c.a[p.transa ? p.a.PlaceOf(l, i, batch)
                                                  : p.a.PlaceOf(i, l, batch)];
        }
        double& d = c.d[p.d.PlaceOf(i, j, batch)];
        d = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * d) +
            (has_bias ? c.bias[static_cast<size_t>(i)] : 0);
        if (has_relu) d = std::max(d, 0.0);
      }
    }
  }
  for (int64_t j = 0; p.epilogue == CUBLASLT_EPILOGUE_BGRADB && j < p.d.cols;
       ++j) {
    double& sum = c.bias[static_cast<size_t>(j)];
    sum = 0;
    for (int64_t l = 0; l < k; ++l) sum += b_at(l, j, 0);
  }
}

// A product of the given types whose matrices are 8 elements longer than their
// columns, or rows.
TestProduct MakeProduct(cudaDataType_t type, cudaDataType_t written,
                        bool transa, bool transb,
                        cublasLtOrder_t order = CUBLASLT_ORDER_COL) {
  const auto matrix = [order](int64_t rows, int64_t cols, cudaDataType_t type) {
    const int64_t length = order == CUBLASLT_ORDER_COL ? rows : cols;
    return TestMatrix{.rows = rows,
                      .cols = cols,
                      .ld = length + 8,
                      .order = order,
                      .type = type};
  };
  constexpr int64_t kM = 8, kN = 16, kK = 24;
  return {.a = transa ? matrix(kK, kM, type) : matrix(kM, kK, type),
          .b = transb ? matrix(kN, kK, type) : matrix(kK, kN, type),
          .d = matrix(kM, kN, written),
          .transa = transa,
          .transb = transb};
}

struct Types {
  cudaDataType_t factors, result;
};
constexpr Types kTypes[] = {{CUDA_R_32F, CUDA_R_32F},
                            {CUDA_R_16F, CUDA_R_16F},
                            {CUDA_R_16F, CUDA_R_32F},
                            {CUDA_R_16BF, CUDA_R_16BF},
                            {CUDA_R_16BF, CUDA_R_32F}};

class CublasLtProductTest : public CublasLtFixture {
 protected:
  // Runs the product and compares D and the bias with those of the host.
  void Check(const TestProduct& p, Contents c) {
    const DeviceElements a(p.a.type, c.a), b(p.b.type, c.b);
    const DeviceElements d(p.d.type, c.d), bias(p.d.type, c.bias);
    const bool plain = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                       p.epilogue == CUBLASLT_EPILOGUE_RELU;
    void* const on_bias = plain ? nullptr : bias.data();
    cublasLtMatmulHeuristicResult_t choice = {};
    Ok(Choose(p, on_bias, choice));
    Ok(Enqueue(p, choice, a.data(), b.data(), d.data(), on_bias));
    Multiply(p, c);
    EXPECT_EQ(d.Read(), c.d);
    EXPECT_EQ(bias.Read(), c.bias);
  }
};

TEST_F(CublasLtProductTest, IsExactInEveryTypeOrderAndTranspose) {
  for (const auto& [factors, result] : kTypes) {
    for (int i = 0; i < 8; ++i) {
      TestProduct p =
          MakeProduct(factors, result, i % 2 == 1, i / 2 % 2 == 1,
                      i < 4 ? CUBLASLT_ORDER_COL : CUBLASLT_ORDER_ROW);
      SCOPED_TRACE(testing::Message()
                   << factors << " to " << result << ", " << i);
      p.beta = -1;
      Check(p, Contents(p));
    }
  }
}

TEST_F(CublasLtProductTest, AppliesEpilogues) {
  for (const auto epilogue :
       {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS,
        CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BGRADB}) {
    for (const cudaDataType_t type : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}) {
      TestProduct p = MakeProduct(type, type, true, false);
      SCOPED_TRACE(testing::Message() << epilogue << " in " << type);
      p.epilogue = epilogue;
      p.alpha = 2;
      Check(p, Contents(p));
    }
  }
}

TEST_F(CublasLtProductTest, ReadsCOnlyIfBetaIsNotZero) {
  const TestProduct p = MakeProduct(CUDA_R_32F, CUDA_R_32F, false, false);
  Contents c(p);
  for (int64_t i = 0; i < p.d.rows; ++i) c.d[p.d.PlaceOf(i, 0)] = NAN;
  Check(p, c);
}

// A is the same in each batch.
TEST_F(CublasLtProductTest, MultipliesBatches) {
  TestProduct p = MakeProduct(CUDA_R_32F, CUDA_R_32F, false, true);
  for (TestMatrix* const each : {&p.a, &p.b, &p.d}) {
    each->batch_count = 3;
    const int64_t size = each->ld * each->cols + 32;
    each->batch_stride = each == &p.a ? 0 : size;
  }
  Check(p, Contents(p));
}

}  // namespace
}  // namespace lockstep
