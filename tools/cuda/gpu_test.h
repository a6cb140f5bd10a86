// The behaviour of a GPU test on a machine without a GPU.
#ifndef LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_
#define LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_

#include <cuda_runtime.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {

// Returns whether a test that finds fewer than `gpus` GPUs must fail, instead
// of being skipped. The environment's LOCKSTEP_REQUIRE_GPU is the number of
// GPUs that the machine must have.
inline bool GpusRequired(int gpus = 1) {
  const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
  return required != nullptr && std::atoi(required) >= gpus;
}

// The base of a test that needs one GPU. Without a GPU the test is skipped,
// with the reason. If GpusRequired(), it fails instead, so that a machine that
// should have a GPU cannot pass by skipping.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0) return;
    const char* const reason =
        error == cudaSuccess ? "no devices" : cudaGetErrorString(error);
    if (GpusRequired())
      FAIL() << "LOCKSTEP_REQUIRE_GPU, but no GPU: " << reason;
    GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_
