// A fixture for tests of products by cuBLASLt or its stand-in: a handle,
// matrices in device memory, and one call with the algorithm that the library
// proposes.
#ifndef LOCKSTEP_STANDIN_CUBLAS_PRODUCT_FIXTURE_H_
#define LOCKSTEP_STANDIN_CUBLAS_PRODUCT_FIXTURE_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/data_types.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {

// Expect success.
inline void Ok(cudaError_t error, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  if (error != cudaSuccess) {
    ADD_FAILURE_AT(file, line) << cudaGetErrorName(error);
  }
}
inline void Ok(cublasStatus_t status, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    ADD_FAILURE_AT(file, line) << cublasLtGetStatusString(status);
  }
}

inline DataType ElementOf(cudaDataType_t type) {
  return type == CUDA_R_16F    ? DataType::kFloat16
         : type == CUDA_R_16BF ? DataType::kBFloat16
                               : DataType::kFloat32;
}

// Elements in device memory.
class DeviceElements {
 public:
  DeviceElements(cudaDataType_t type, const std::vector<double>& values)
      : type_(ElementOf(type)),
        count_(values.size()),
        bytes_(count_ * static_cast<size_t>(SizeOf(type_))) {
    std::vector<std::byte> bytes(bytes_);
    for (size_t i = 0; i < count_; ++i) {
      WithDataType(type_, [&]<typename T>(T element) {
        const auto value = static_cast<float>(values[i]);
        if constexpr (sizeof(T) == 4) element = static_cast<T>(value);
        if constexpr (sizeof(T) == 2) {
          element = type_ == DataType::kFloat16 ? T{ToFloat16(value).bits}
                                                : T{ToBFloat16(value).bits};
        }
        std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
      });
    }
    Ok(cudaMalloc(&data_, bytes_));
    Ok(cudaMemcpy(data_, bytes.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~DeviceElements() { Ok(cudaFree(data_)); }
  DeviceElements(const DeviceElements&) = delete;
  DeviceElements& operator=(const DeviceElements&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Waits for the device, then reads.
  std::vector<double> Read() const {
    std::vector<std::byte> bytes(bytes_);
    Ok(cudaDeviceSynchronize());
    Ok(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    std::vector<double> values;
    for (size_t i = 0; i < count_; ++i) {
      WithDataType(type_, [&]<typename T>(T element) {
        std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
        if constexpr (sizeof(T) == 2) {
          values.push_back(ToFloat(element));
        } else {
          values.push_back(static_cast<double>(element));
        }
      });
    }
    return values;
  }

 private:
  DataType type_;
  size_t count_, bytes_;
  void* data_ = nullptr;
};

// A matrix's layout and the place of its elements.
struct TestMatrix {
  int64_t rows = 1, cols = 1, ld = 1;
  cublasLtOrder_t order = CUBLASLT_ORDER_COL;
  cudaDataType_t type = CUDA_R_32F;
  int32_t batch_count = 1;
  int64_t batch_stride = 0;

  size_t PlaceOf(int64_t row, int64_t col, int64_t batch = 0) const {
    return static_cast<size_t>(
        batch * batch_stride +
        (order == CUBLASLT_ORDER_COL ? col * ld + row : row * ld + col));
  }
  // Returns the number of elements in memory, with those between columns.
  size_t size() const {
    const int64_t lines = order == CUBLASLT_ORDER_COL ? cols : rows;
    return static_cast<size_t>((batch_count - 1) * batch_stride + lines * ld);
  }
};

// One product. Each matrix's memory is as its TestMatrix says.
struct TestProduct {
  TestMatrix a, b, d;  // C has D's layout.
  bool transa = false, transb = false;
  float alpha = 1, beta = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

class CublasLtFixture : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Ok(cublasLtCreate(&handle_));
    Ok(cublasLtMatmulPreferenceCreate(&preference_));
    const uint64_t most = uint64_t{1} << 20;
    Ok(cublasLtMatmulPreferenceSetAttribute(
        preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
        sizeof(most)));
    Ok(cudaMalloc(&workspace_, most));
  }
  void TearDown() override {
    if (handle_ == nullptr) return;
    Ok(cudaDeviceSynchronize());
    for (const auto each : layouts_) Ok(cublasLtMatrixLayoutDestroy(each));
    for (const auto each : descs_) Ok(cublasLtMatmulDescDestroy(each));
    Ok(cublasLtMatmulPreferenceDestroy(preference_));
    Ok(cublasLtDestroy(handle_));
    Ok(cudaFree(workspace_));
  }

  cublasLtMatrixLayout_t Layout(const TestMatrix& m) {
    cublasLtMatrixLayout_t& made = layouts_.emplace_back();
    Ok(cublasLtMatrixLayoutCreate(&made, m.type, static_cast<uint64_t>(m.rows),
                                  static_cast<uint64_t>(m.cols), m.ld));
    const auto set = [&](cublasLtMatrixLayoutAttribute_t name,
                         const auto& value) {
      Ok(cublasLtMatrixLayoutSetAttribute(made, name, &value, sizeof(value)));
    };
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, m.order);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, m.batch_count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.batch_stride);
    return made;
  }
  cublasLtMatmulDesc_t Desc(const TestProduct& p, void* bias) {
    cublasLtMatmulDesc_t& made = descs_.emplace_back();
    Ok(cublasLtMatmulDescCreate(&made, p.compute, CUDA_R_32F));
    const auto set = [&](cublasLtMatmulDescAttributes_t name,
                         const auto& value) {
      Ok(cublasLtMatmulDescSetAttribute(made, name, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transa ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transb ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    return made;
  }

  // Finds an algorithm for the product. D also stands for C.
  cublasStatus_t Choose(const TestProduct& p, void* bias,
                        cublasLtMatmulHeuristicResult_t& result) {
    int found = 0;
    const cublasLtMatrixLayout_t d = Layout(p.d);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, Desc(p, bias), Layout(p.a), Layout(p.b), d, d, preference_, 1,
        &result, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    return status;
  }
  // Enqueues the product, with D in place of C.
  cublasStatus_t Enqueue(const TestProduct& p,
                         const cublasLtMatmulHeuristicResult_t& choice,
                         const void* a, const void* b, void* d,
                         void* bias = nullptr, cudaStream_t stream = nullptr) {
    const cublasLtMatrixLayout_t layout = Layout(p.d);
    return cublasLtMatmul(handle_, Desc(p, bias), &p.alpha, a, Layout(p.a), b,
                          Layout(p.b), &p.beta, d, layout, d, layout,
                          &choice.algo, workspace_, choice.workspaceSize,
                          stream);
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<cublasLtMatrixLayout_t> layouts_;
  std::vector<cublasLtMatmulDesc_t> descs_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_STANDIN_CUBLAS_PRODUCT_FIXTURE_H_
