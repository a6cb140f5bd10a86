// Ranges of device memory.
#ifndef LOCKSTEP_BASE_DEVICE_SPAN_H_
#define LOCKSTEP_BASE_DEVICE_SPAN_H_

#include <cassert>
#include <cstdint>
#include <type_traits>

namespace lockstep {

// `size` elements of device memory from `data` on: what std::span is for host
// memory, but without operator[] or iterators, so that host code cannot
// dereference it. Borrows the memory. Copies are cheap: pass it by value.
template <typename T>
class DeviceSpan {
 public:
  constexpr DeviceSpan() = default;

  // data may be null if size is 0. size must not be negative.
  constexpr DeviceSpan(T* data, int64_t size) : data_(data), size_(size) {
    assert(size >= 0);
  }

  // DeviceSpan<T> converts to DeviceSpan<const T>.
  template <typename U>
  requires std::is_same_v<const U, T>
  constexpr DeviceSpan(DeviceSpan<U> other)
      : data_(other.data()), size_(other.size()) {}

  constexpr T* data() const { return data_; }
  constexpr int64_t size() const { return size_; }  // Elements.
  constexpr int64_t size_bytes() const {
    return size_ * static_cast<int64_t>(sizeof(T));
  }
  constexpr bool empty() const { return size_ == 0; }

  // The `count` elements from `offset` on; they must lie in this span.
  constexpr DeviceSpan subspan(int64_t offset, int64_t count) const {
    assert(offset >= 0 && count >= 0 && offset <= size_ - count);
    return DeviceSpan(data_ + offset, count);
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_DEVICE_SPAN_H_
