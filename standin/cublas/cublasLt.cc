#include "standin/cublas/cublasLt.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "standin/cublas/product.h"
#include "standin/include/cuda_runtime.h"
#include "standin/queue.h"

using lockstep::standin::cublas::AdoptAlgo;
using lockstep::standin::cublas::CheckMemory;
using lockstep::standin::cublas::CheckProduct;
using lockstep::standin::cublas::Invalid;
using lockstep::standin::cublas::MakeAlgo;
using lockstep::standin::cublas::Multiply;
using lockstep::standin::cublas::NotSupported;
using lockstep::standin::cublas::Product;
using lockstep::standin::cublas::Refuse;

struct cublasLtContext {};

namespace {

// Writes an attribute's value to its place.
template <typename T>
cublasStatus_t SetValue(T& place, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) {
    return Invalid("an attribute's value is null or has another size");
  }
  std::memcpy(&place, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      break;
  }
  return "execution failed";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return SetValue(desc->transa, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return SetValue(desc->transb, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return SetValue(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return SetValue(desc->bias, value, bytes);
  }
  return NotSupported("a product lacks the attribute");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t{.type = type,
                                             .rows = static_cast<int64_t>(rows),
                                             .cols = static_cast<int64_t>(cols),
                                             .ld = ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return SetValue(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return SetValue(layout->batch_count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return SetValue(layout->batch_stride, value, bytes);
  }
  return NotSupported("a matrix lacks the attribute");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return SetValue(preference->max_workspace, value, bytes);
  }
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    // The stand-in never splits a sum.
    uint32_t schemes = 0;
    return SetValue(schemes, value, bytes);
  }
  const int matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (matrix < 0 || matrix > 3) {
    return NotSupported("a preference lacks the attribute");
  }
  return SetValue(preference->alignments[static_cast<size_t>(matrix)], value,
                  bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
    int requested, cublasLtMatmulHeuristicResult_t* results, int* returned) {
  *returned = 0;
  if (requested < 1) return Invalid("no algorithm is requested");
  const Product p = {.desc = *desc, .a = *a, .b = *b, .c = *c, .d = *d};
  const cublasStatus_t status = CheckProduct(p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto wanted = static_cast<uint64_t>(256 * p.m());
  const uint64_t workspace = wanted <= preference->max_workspace ? wanted : 0;
  *results = {};
  results->algo = MakeAlgo(p, workspace, preference->alignments);
  results->workspaceSize = workspace;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout,
                              void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  Product p = {.desc = *desc,
               .a = *a_layout,
               .b = *b_layout,
               .c = *c_layout,
               .d = *d_layout,
               .on_a = a,
               .on_b = b,
               .on_c = c,
               .on_d = d,
               .workspace = workspace,
               .workspace_bytes = workspace_bytes,
               .alpha = *static_cast<const float*>(alpha),
               .beta = *static_cast<const float*>(beta)};
  cublasStatus_t status = CheckProduct(p);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = AdoptAlgo(algo, p);
  }
  if (status == CUBLAS_STATUS_SUCCESS) status = CheckMemory(p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cudaError_t error = lockstep::standin::PutKernel(stream, [p] {
    return [p] {
      Multiply(p);
      return true;
    };
  });
  return error == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : Refuse(CUBLAS_STATUS_EXECUTION_FAILED, cudaGetErrorName(error));
}
