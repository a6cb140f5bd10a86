// Tests what only cuBLASLt's stand-in promises: order on streams, and errors.
#include "standin/cublas/product.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "standin/cublas/product_fixture.h"

namespace lockstep {
namespace {

using standin::Order;
using standin::SetSchedule;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;

// A is [[1, 3], [2, 4]] and B is the column [10, 1], so that D is [13, 24].
class CublasLtStandinTest : public CublasLtFixture {
 protected:
  void SetUp() override {
    CublasLtFixture::SetUp();
    Ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Ok(Choose(p_, nullptr, choice_));
  }
  void TearDown() override {
    CublasLtFixture::TearDown();
    Ok(cudaStreamDestroy(stream_));
    SetSchedule({});
  }

  cublasStatus_t Run(void* bias = nullptr) {
    return Enqueue(p_, choice_, a_.data(), b_.data(), d_.data(), bias, stream_);
  }
  // Returns D, without waiting for any stream.
  std::vector<float> Peek() const {
    std::vector<float> values(2);
    std::memcpy(values.data(), d_.data(), 8);
    return values;
  }
  // Expects an error whose reason contains `why`.
  void Fails(cublasStatus_t want, const char* why, void* bias = nullptr) {
    testing::internal::CaptureStderr();
    const cublasStatus_t status = Run(bias);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(why));
    EXPECT_EQ(status, want) << why;
    EXPECT_THAT(d_.Read(), Each(IsNan()));
  }

  TestProduct p_ = {.a = {.rows = 2, .cols = 2, .ld = 2},
                    .b = {.rows = 2, .cols = 1, .ld = 2},
                    .d = {.rows = 2, .cols = 1, .ld = 2}};
  DeviceElements a_{CUDA_R_32F, {1, 2, 3, 4}};
  DeviceElements b_{CUDA_R_32F, {10, 1}};
  DeviceElements d_{CUDA_R_32F, {NAN, NAN}};
  DeviceElements other_{CUDA_R_32F, {1, 10}};
  cudaStream_t stream_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

TEST_F(CublasLtStandinTest, RunsInTheOrderOfItsStream) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  Ok(Run());
  Ok(cudaMemcpyAsync(b_.data(), other_.data(), 8, cudaMemcpyDeviceToDevice,
                     stream_));
  EXPECT_THAT(Peek(), Each(IsNan()));  // Held back.
  Ok(cudaStreamSynchronize(stream_));
  EXPECT_THAT(Peek(), ElementsAre(13, 24));
  Ok(Run());
  EXPECT_THAT(Peek(), ElementsAre(13, 24));
  Ok(cudaStreamSynchronize(stream_));
  EXPECT_THAT(Peek(), ElementsAre(31, 42));
}

TEST_F(CublasLtStandinTest, NeedsAStreamOfTheCurrentDevice) {
  standin::SetDevices({.count = 2});
  Ok(cudaSetDevice(1));
  Fails(CUBLAS_STATUS_EXECUTION_FAILED, "cudaErrorInvalidResourceHandle");
  Ok(cudaSetDevice(0));
  standin::SetDevices({.count = 1});
}

TEST_F(CublasLtStandinTest, IsReplayedByGraphs) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  Ok(Run());
  Ok(cudaStreamEndCapture(stream_, &graph));
  Ok(cudaGraphInstantiate(&executable, graph));
  EXPECT_THAT(Peek(), Each(IsNan()));
  for (const float want : {13.0f, 31.0f}) {
    Ok(cudaGraphLaunch(executable, stream_));
    Ok(cudaStreamSynchronize(stream_));
    EXPECT_EQ(Peek()[0], want);
    Ok(cudaMemcpy(b_.data(), other_.data(), 8, cudaMemcpyDeviceToDevice));
  }
  Ok(cudaGraphExecDestroy(executable));
  Ok(cudaGraphDestroy(graph));
}

// B lies in the workspace, which is overwritten before B is read.
TEST_F(CublasLtStandinTest, OverwritesItsWorkspace) {
  ASSERT_EQ(choice_.workspaceSize, 512u);
  Ok(cudaMemcpy(workspace_, b_.data(), 8, cudaMemcpyDeviceToDevice));
  Ok(Enqueue(p_, choice_, a_.data(), workspace_, d_.data()));
  EXPECT_THAT(d_.Read(), Each(IsNan()));
  Ok(Enqueue(p_, choice_, a_.data(), b_.data(), workspace_));
  float first = 0;
  Ok(cudaMemcpy(&first, workspace_, 4, cudaMemcpyDeviceToHost));
  EXPECT_THAT(first, IsNan());
}

TEST_F(CublasLtStandinTest, RefusesProductsThatMakeNoSense) {
  constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
  constexpr auto kNotSupported = CUBLAS_STATUS_NOT_SUPPORTED;
  const TestProduct right = p_;
  p_.b.rows = 1;
  Fails(kInvalid, "sizes do not match");
  p_ = right;
  p_.a.ld = 1;
  Fails(kInvalid, "leading dimension");
  p_ = right;
  p_.a.batch_count = 2;
  Fails(kInvalid, "different batches");
  p_ = right;
  p_.b.type = CUDA_R_16F;
  Fails(kNotSupported, "one type");
  p_ = right;
  p_.epilogue = CUBLASLT_EPILOGUE_BIAS;
  Fails(kInvalid, "the bias pointer is not set");
  p_.d.order = CUBLASLT_ORDER_ROW;
  Fails(kNotSupported, "column-major", a_.data());
  p_ = right;
  p_.a.type = p_.b.type = p_.d.type = CUDA_R_16BF;
  p_.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  Fails(kNotSupported, "TF32");
}

TEST_F(CublasLtStandinTest, RefusesMemoryAndAlgorithmsThatDoNotFit) {
  constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
  const TestProduct right = p_;
  p_.b = {.rows = 2, .cols = 2, .ld = 2};
  p_.d = {.rows = 2, .cols = 2, .ld = 2};
  Fails(CUBLAS_STATUS_NOT_SUPPORTED, "for other sizes");
  Ok(Choose(p_, nullptr, choice_));
  Fails(kInvalid, "a matrix does not lie in device memory");  // B is small.
  p_ = right;
  Ok(Choose(p_, nullptr, choice_));
  alignas(256) float matrix_on_host[4] = {};
  for (size_t i = 0; i < 3; ++i) {
    void* pointers[] = {a_.data(), b_.data(), d_.data()};
    pointers[i] = matrix_on_host;
    EXPECT_EQ(Enqueue(p_, choice_, pointers[0], pointers[1], pointers[2]),
              kInvalid);
  }
  p_.epilogue = CUBLASLT_EPILOGUE_BIAS;
  Ok(Choose(p_, a_.data(), choice_));
  float on_host[2] = {};
  Fails(kInvalid, "the bias does not lie in device memory", on_host);
  p_ = right;
  Ok(Choose(p_, nullptr, choice_));
  choice_.workspaceSize -= 1;
  Fails(kInvalid, "the workspace is too small");
  choice_.workspaceSize += 1;
  Ok(cudaFree(workspace_));
  Ok(cudaMalloc(&workspace_, 256));
  Fails(kInvalid, "the workspace does not lie in device memory");
  TestProduct shifted = p_;
  shifted.b = {.rows = 2, .cols = 1, .ld = 2};
  testing::internal::CaptureStderr();
  EXPECT_EQ(Enqueue(shifted, choice_, static_cast<char*>(a_.data()) + 4,
                    b_.data(), d_.data()),
            kInvalid);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("alignment"));
}

}  // namespace
}  // namespace lockstep
