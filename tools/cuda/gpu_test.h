// What a test on a GPU does on a machine that has none.
#ifndef LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_
#define LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_

#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>

#include "gtest/gtest.h"

namespace lockstep {

// Base of a test that needs one GPU. Without one it is skipped, with the
// reason; where the environment says LOCKSTEP_REQUIRE_GPU=1 it fails instead,
// so that a machine that should have a GPU cannot pass by skipping.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0) return;
    const char* const reason =
        error == cudaSuccess ? "no devices" : cudaGetErrorString(error);
    const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
    if (required != nullptr && std::string_view(required) == "1") {
      FAIL() << "LOCKSTEP_REQUIRE_GPU=1, but no GPU: " << reason;
    }
    GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_
