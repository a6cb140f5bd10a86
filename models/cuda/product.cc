#include "models/cuda/product.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// A size that cuBLASLt's fastest algorithms are content with on every card.
constexpr uint64_t kMostWorkspaceBytes = uint64_t{32} << 20;

absl::Status CublasStatus(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cublasLtGetStatusString(status));
  return status == CUBLAS_STATUS_NOT_SUPPORTED
             ? absl::UnimplementedError(message)
             : absl::InternalError(message);
}

cudaDataType_t CublasTypeOf(DataType type) {
  return type == DataType::kFloat16    ? CUDA_R_16F
         : type == DataType::kBFloat16 ? CUDA_R_16BF
                                       : CUDA_R_32F;
}

// A matrix in row-major order. cuBLASLt calls it a transposed matrix in
// column-major order, which the fused bias needs.
absl::StatusOr<CublasLtOwner<cublasLtMatrixLayout_t>> LayoutOf(DataType type,
                                                               int64_t rows,
                                                               int64_t columns,
                                                               int64_t batch) {
  cublasLtMatrixLayout_t layout = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatrixLayoutCreate(&layout, CublasTypeOf(type),
                                 static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), columns),
      "cublasLtMatrixLayoutCreate"));
  CublasLtOwner<cublasLtMatrixLayout_t> owner(layout);
  const auto count = static_cast<int32_t>(batch);
  const int64_t stride = rows * columns;
  LOCKSTEP_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatrixLayoutSetAttribute(
          layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
      "the number of matrices"));
  LOCKSTEP_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatrixLayoutSetAttribute(
                       layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                       &stride, sizeof(stride)),
                   "the distance of matrices"));
  return owner;
}

// Returns the alignment of every matrix of a batch, whose first is aligned to
// 16 bytes.
uint32_t AlignmentOf(DataType type, int64_t batch, int64_t size) {
  constexpr uint32_t kFirst = 16;
  if (batch == 1) return kFirst;
  const auto bytes = static_cast<uint64_t>(size * SizeOf(type));
  return uint32_t{1} << std::countr_zero(bytes | kFirst);
}

}  // namespace

absl::StatusOr<CublasLtOwner<cublasLtHandle_t>> CreateCublasLt() {
  cublasLtHandle_t handle = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CublasStatus(cublasLtCreate(&handle), "cublasLtCreate"));
  return CublasLtOwner<cublasLtHandle_t>(handle);
}

absl::Status Product::Describe() {
  cublasLtMatmulDesc_t description = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulDescCreate(
          &description,
          shape_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
          CUDA_R_32F),
      "cublasLtMatmulDescCreate"));
  description_.reset(description);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
    return CublasStatus(cublasLtMatmulDescSetAttribute(description, name,
                                                       &value, sizeof(value)),
                        "cublasLtMatmulDescSetAttribute");
  };
  // In column-major order C' = op(B)' op(A)': cuBLASLt's A is our B.
  const cublasOperation_t on_b = shape_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t on_a = shape_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  LOCKSTEP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, on_b));
  LOCKSTEP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, on_a));
  const bool has_bias = shape_.bias != nullptr;
  const cublasLtEpilogue_t epilogue =
      shape_.relu
          ? (has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU)
          : (has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  LOCKSTEP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
  if (has_bias) {
    LOCKSTEP_RETURN_IF_ERROR(
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, shape_.bias));
  }
  const int64_t rows = shape_.rows;
  const int64_t columns = shape_.columns;
  const int64_t inner = shape_.inner;
  const auto layout = [&](DataType type, bool transposed, int64_t height,
                          int64_t width) {
    return transposed ? LayoutOf(type, width, height, shape_.batch)
                      : LayoutOf(type, height, width, shape_.batch);
  };
  const DataType type = shape_.type;
  LOCKSTEP_ASSIGN_OR_RETURN(a_, layout(type, shape_.transpose_a, rows, inner));
  LOCKSTEP_ASSIGN_OR_RETURN(b_,
                            layout(type, shape_.transpose_b, inner, columns));
  LOCKSTEP_ASSIGN_OR_RETURN(
      c_, layout(shape_.written.value_or(type), false, rows, columns));
  return absl::OkStatus();
}

absl::Status Product::ChooseAlgorithm() {
  cublasLtMatmulPreference_t preference = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulPreferenceCreate(&preference),
                   "cublasLtMatmulPreferenceCreate"));
  const CublasLtOwner<cublasLtMatmulPreference_t> owner(preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name,
                       const auto& value) {
    return CublasStatus(cublasLtMatmulPreferenceSetAttribute(
                            preference, name, &value, sizeof(value)),
                        "cublasLtMatmulPreferenceSetAttribute");
  };
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes));
  // Partial sums in a 16-bit type would be rounded.
  constexpr uint32_t kSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kSchemes));
  const auto alignment = [&](DataType type, int64_t rows, int64_t columns) {
    return AlignmentOf(type, shape_.batch, rows * columns);
  };
  const DataType type = shape_.type;
  const uint32_t of_a = alignment(type, shape_.rows, shape_.inner);
  const uint32_t of_b = alignment(type, shape_.inner, shape_.columns);
  const uint32_t of_c =
      alignment(shape_.written.value_or(type), shape_.rows, shape_.columns);
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b));
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a));
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c));
  LOCKSTEP_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_c));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  LOCKSTEP_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulAlgoGetHeuristic(handle_, description_.get(), b_.get(),
                                     a_.get(), c_.get(), c_.get(), preference,
                                     1, &result, &found),
      "cublasLtMatmulAlgoGetHeuristic"));
  if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
    return absl::UnimplementedError("cuBLASLt has no algorithm");
  }
  algorithm_ = result.algo;
  algorithm_bytes_ = static_cast<int64_t>(result.workspaceSize);
  return absl::OkStatus();
}

absl::StatusOr<Product> Product::Create(cublasLtHandle_t handle,
                                        ProductShape shape) {
  Product product;
  product.handle_ = handle;
  product.shape_ = std::move(shape);
  absl::Status status = product.Describe();
  if (status.ok()) status = product.ChooseAlgorithm();
  if (!status.ok()) return product.Named(status);
  return product;
}

absl::Status Product::Execute(const void* a, const void* b, void* c,
                              void* workspace, cudaStream_t stream) const {
  const float beta = 0;  // C is not read.
  const auto start = reinterpret_cast<uintptr_t>(workspace);
  const uintptr_t aligned = (start + kWorkspaceAlignment - 1) /
                            kWorkspaceAlignment * kWorkspaceAlignment;
  return Named(CublasStatus(
      cublasLtMatmul(handle_, description_.get(), &shape_.scale, b, b_.get(), a,
                     a_.get(), &beta, c, c_.get(), c, c_.get(), &algorithm_,
                     reinterpret_cast<void*>(aligned),
                     static_cast<size_t>(algorithm_bytes_), stream),
      "cublasLtMatmul"));
}

absl::Status Product::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return {status.code(), absl::StrCat(shape_.name, ": ", status.message())};
}

}  // namespace lockstep
