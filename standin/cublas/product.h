// The products of cuBLASLt's stand-in: their descriptions, checks and sums.
#ifndef LOCKSTEP_STANDIN_CUBLAS_PRODUCT_H_
#define LOCKSTEP_STANDIN_CUBLAS_PRODUCT_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "standin/cublas/cublasLt.h"

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
};

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0, cols = 0, ld = 0;
  int32_t order = CUBLASLT_ORDER_COL;
  int32_t batch_count = 1;
  int64_t batch_stride = 0;
};

struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t max_workspace = 0;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};  // Of A to D.
};

namespace lockstep::standin::cublas {

// The sizes and pointers of one call. op(A) is [m, k], op(B) is [k, n].
struct Product {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  const void* on_a = nullptr;
  const void* on_b = nullptr;
  const void* on_c = nullptr;
  void* on_d = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  float alpha = 1, beta = 0;

  int64_t m() const { return d.rows; }
  int64_t n() const { return d.cols; }
  int64_t k() const { return desc.transa == CUBLAS_OP_T ? a.rows : a.cols; }
  bool has(cublasLtEpilogue_t epilogue) const {
    return (desc.epilogue & static_cast<uint32_t>(epilogue)) != 0;
  }
};

// Print why a call fails. Return the status.
cublasStatus_t Refuse(cublasStatus_t status, const char* why);
cublasStatus_t Invalid(const char* why);
cublasStatus_t NotSupported(const char* why);

// Checks types, sizes and epilogue.
cublasStatus_t CheckProduct(const Product& p);

// Returns an algorithm for the product's sizes, which relies on these
// alignments of A, B, C and D.
cublasLtMatmulAlgo_t MakeAlgo(const Product& p, uint64_t workspace_bytes,
                              const std::array<uint32_t, 4>& alignments);

// Checks that the algorithm is for this product, whose workspace_bytes are at
// least the algorithm's. Sets workspace_bytes to the algorithm's.
cublasStatus_t AdoptAlgo(const cublasLtMatmulAlgo_t* algo, Product& p);

// Checks that matrices, bias and workspace lie in device memory.
cublasStatus_t CheckMemory(const Product& p);

// Computes D, with sums in float64 and each element rounded once. Overwrites
// the workspace with NaN before and after.
void Multiply(const Product& p);

}  // namespace lockstep::standin::cublas

#endif  // LOCKSTEP_STANDIN_CUBLAS_PRODUCT_H_
