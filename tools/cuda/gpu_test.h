// What a test on a GPU does on a machine that has none.
#ifndef LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_
#define LOCKSTEP_TOOLS_CUDA_GPU_TEST_H_

#include <cuda_runtime.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {

// Whether a test that finds fewer than so many GPUs fails, rather than being
// skipped: the environment's LOCKSTEP_REQUIRE_GPU says how many there must be.
inline bool GpusRequired(int gpus = 1) {
  const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
  return required != nullptr && std::atoi(required) >= gpus;
}

// Base of a test that needs one GPU. Without one it is skipped, with the
// reason; where GpusRequired() it fails instead, so that a machine that should
// have a GPU cannot pass by skipping.
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
