// Including this header makes DeviceTensor allocate on the GPU, or on its
// stand-in.
#ifndef LOCKSTEP_SYNCBN_CUDA_CUDA_TEST_DEVICE_H_
#define LOCKSTEP_SYNCBN_CUDA_CUDA_TEST_DEVICE_H_

#include <cuda_runtime.h>

#include <cstddef>

#include "gtest/gtest.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {

[[maybe_unused]] static const bool kTestsOnCuda = SetTestDevice(
    {.allocate =
         [](size_t bytes) {
           std::byte* memory = nullptr;
           EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
           return memory;
         },
     .free =
         [](std::byte* memory) { EXPECT_EQ(cudaFree(memory), cudaSuccess); },
     .write =
         [](std::byte* to, const void* from, size_t bytes) {
           EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
         },
     .read =
         [](void* to, const std::byte* from, size_t bytes) {
           EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
           EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost),
                     cudaSuccess);
         }});

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDA_TEST_DEVICE_H_
