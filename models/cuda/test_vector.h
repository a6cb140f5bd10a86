// Device memory for tests.
#ifndef LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_
#define LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/data_types.h"
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

  // Waits for the device; replaces the values by as many others.
  void Write(const std::vector<T>& values) {
    EXPECT_EQ(values.size(), size_);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

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

// Returns the value rounded to a type of activations, to nearest.
inline float Rounded(DataType type, float value) {
  return type == DataType::kFloat16    ? ToFloat(ToFloat16(value))
         : type == DataType::kBFloat16 ? ToFloat(ToBFloat16(value))
                                       : value;
}
inline std::vector<float> Rounded(DataType type, std::vector<float> values) {
  for (float& value : values) value = Rounded(type, value);
  return values;
}

// Elements of a type of activations in the memory of the current device:
// rounded on their way there, widened on their way back.
class TestActivations {
 public:
  TestActivations(DataType type, const std::vector<float>& values)
      : type_(type), bytes_(Narrow(type, values)) {}

  void* data() { return bytes_.data(); }

  // Waits for the device; returns the values.
  std::vector<float> Read() const {
    const std::vector<std::byte> bytes = bytes_.Read();
    const auto size = static_cast<size_t>(SizeOf(type_));
    std::vector<float> values(bytes.size() / size);
    for (size_t i = 0; i < values.size(); ++i) {
      const std::byte* const from = bytes.data() + i * size;
      BFloat16 narrow = {};
      std::memcpy(&narrow, from, sizeof(narrow));
      values[i] = type_ == DataType::kFloat16 ? ToFloat(Float16{narrow.bits})
                                              : ToFloat(narrow);
      if (size == sizeof(float)) std::memcpy(&values[i], from, size);
    }
    return values;
  }

 private:
  static std::vector<std::byte> Narrow(DataType type,
                                       const std::vector<float>& values) {
    const auto size = static_cast<size_t>(SizeOf(type));
    std::vector<std::byte> bytes(values.size() * size);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t narrow = type == DataType::kFloat16
                                  ? ToFloat16(values[i]).bits
                                  : ToBFloat16(values[i]).bits;
      const void* const from = size == sizeof(float)
                                   ? static_cast<const void*>(&values[i])
                                   : &narrow;
      std::memcpy(bytes.data() + i * size, from, size);
    }
    return bytes;
  }

  DataType type_;
  TestVector<std::byte> bytes_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_TEST_VECTOR_H_
