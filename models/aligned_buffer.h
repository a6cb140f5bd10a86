// Float storage on a cache line boundary.
#ifndef LOCKSTEP_MODELS_ALIGNED_BUFFER_H_
#define LOCKSTEP_MODELS_ALIGNED_BUFFER_H_

#include <cstdint>
#include <memory>
#include <span>

namespace lockstep {

// A fixed number of zero-filled host floats, 64-byte aligned. Movable; spans
// stay valid when it moves.
class AlignedBuffer {
 public:
  static constexpr int64_t kAlignment = 64;  // Bytes: a cache line.

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size);

  int64_t size() const { return size_; }
  float* data() { return data_.get(); }
  std::span<float> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const float> span() const {
    return {data_.get(), static_cast<size_t>(size_)};
  }

 private:
  struct Free {
    void operator()(float* data) const;
  };

  int64_t size_ = 0;
  std::unique_ptr<float[], Free> data_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_ALIGNED_BUFFER_H_
