// Device memory for tests.
#ifndef LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_
#define LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {

// A vector in the memory of the current device.
template <typename T>
class TestVector {
 public:
  explicit TestVector(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max(size_, size_t{1}) * sizeof(T)),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~TestVector() { cudaFree(data_); }
  TestVector(const TestVector&) = delete;
  TestVector& operator=(const TestVector&) = delete;

  T* data() { return data_; }
  std::span<const T> span() const { return {data_, size_}; }

  // Waits for the device; returns the values.
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_
