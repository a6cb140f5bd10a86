#include "base/cuda_status.h"

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(CudaStatusTest, SuccessIsOk) {
  EXPECT_THAT(CudaStatus(cudaSuccess, "cudaFree"), IsOk());
}

TEST(CudaStatusTest, SaysWhatFailedAndHow) {
  EXPECT_THAT(
      CudaStatus(cudaErrorInvalidValue, "cudaMemcpy of 7 bytes"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "cudaMemcpy of 7 bytes: cudaErrorInvalidValue (1): invalid "
               "argument"));
}

TEST(CudaStatusTest, GivesTheCodesOfItsContract) {
  using enum absl::StatusCode;
  const auto code = [](cudaError_t e) { return CudaStatus(e, "x").code(); };
  EXPECT_EQ(code(cudaErrorInvalidConfiguration), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorInvalidDevice), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorInvalidResourceHandle), kInvalidArgument);
  EXPECT_EQ(code(cudaErrorMemoryAllocation), kResourceExhausted);
  EXPECT_EQ(code(cudaErrorLaunchOutOfResources), kResourceExhausted);
  EXPECT_EQ(code(cudaErrorNoDevice), kFailedPrecondition);
  EXPECT_EQ(code(cudaErrorInsufficientDriver), kFailedPrecondition);
  EXPECT_EQ(code(cudaErrorNotSupported), kUnimplemented);
  EXPECT_EQ(code(cudaErrorNotReady), kUnavailable);
  EXPECT_EQ(code(cudaErrorLaunchFailure), kInternal);
}

}  // namespace
}  // namespace lockstep
