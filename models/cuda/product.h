// Products of matrices on a GPU, through cuBLASLt.
#ifndef LOCKSTEP_MODELS_CUDA_PRODUCT_H_
#define LOCKSTEP_MODELS_CUDA_PRODUCT_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"

namespace lockstep {

struct DestroyCublasLt {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  void operator()(cublasLtMatmulDesc_t description) const {
    cublasLtMatmulDescDestroy(description);
  }
  void operator()(cublasLtMatrixLayout_t layout) const {
    cublasLtMatrixLayoutDestroy(layout);
  }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
// Owns a handle or a description of cuBLASLt.
template <typename T>
using CublasLtOwner =
    std::unique_ptr<std::remove_pointer_t<T>, DestroyCublasLt>;

// Returns a handle for the current device. Errors: cuBLASLt's.
absl::StatusOr<CublasLtOwner<cublasLtHandle_t>> CreateCublasLt();

// The product C = relu(scale * op(A) op(B) + bias) of matrices in row-major
// order, or `batch` of them, which lie one after the other. op(A) is [rows,
// inner], op(B) is [inner, columns], C is [rows, columns]. All sizes are at
// least 1. Sums are float32.
struct ProductShape {
  std::string name = {};  // For messages.
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t inner = 1;
  bool transpose_a = false;  // A is [inner, rows].
  bool transpose_b = false;  // B is [columns, inner].
  float scale = 1;
  // [columns] of C's type, device memory that outlives the product; null: none.
  // Only for a batch of 1.
  const void* bias = nullptr;
  bool relu = false;
  DataType type = DataType::kFloat32;    // Or float16, or bfloat16.
  std::optional<DataType> written = {};  // C's type, if it differs.
  bool tf32 = false;  // Whether factors may be rounded to TF32.
};

// A product with the algorithm that cuBLASLt's heuristics put first. The same
// inputs give the same bits in every run on one card. Movable. Not thread safe.
class Product {
 public:
  // Borrows the handle. Takes microseconds to milliseconds: keep the product.
  // Errors, which begin with the name: cuBLASLt's; kUnimplemented if it has no
  // algorithm.
  static absl::StatusOr<Product> Create(cublasLtHandle_t handle,
                                        ProductShape shape);

  // The size of the device memory that an execution needs besides its operands.
  // cuBLASLt aligns it to 256 bytes, and this memory need not be aligned: the
  // size is large enough for both.
  int64_t workspace_bytes() const {
    return algorithm_bytes_ == 0 ? 0 : algorithm_bytes_ + kWorkspaceAlignment;
  }

  // Enqueues the product. Matrices are device memory, aligned to 16 bytes.
  // workspace: [workspace_bytes()] of device memory. Errors: cuBLASLt's.
  absl::Status Execute(const void* a, const void* b, void* c, void* workspace,
                       cudaStream_t stream) const;

 private:
  static constexpr int64_t kWorkspaceAlignment = 256;

  Product() = default;
  absl::Status Describe();
  absl::Status ChooseAlgorithm();
  // Returns the status, with the name before its message.
  absl::Status Named(const absl::Status& status) const;

  cublasLtHandle_t handle_ = nullptr;
  ProductShape shape_;
  CublasLtOwner<cublasLtMatmulDesc_t> description_;
  CublasLtOwner<cublasLtMatrixLayout_t> a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
  int64_t algorithm_bytes_ = 0;  // The workspace of algorithm_.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_PRODUCT_H_
