// Typed views of host memory that a collective reads or replaces.
#ifndef LOCKSTEP_COLLECTIVES_BUFFER_H_
#define LOCKSTEP_COLLECTIVES_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace lockstep {

// Element types that a reduction understands.
enum class DataType { kFloat32, kFloat64, kInt64 };

// Bytes of one element.
constexpr int64_t SizeOf(DataType type) {
  return type == DataType::kFloat32 ? 4 : 8;
}

// "float32", "float64", "int64".
const char* Name(DataType type);

// Elements that a collective replaces in place. Borrowed: the caller keeps the
// memory alive and does not touch it until the call (or its handle) is done.
struct Buffer {
  Buffer(std::span<float> s) : Buffer(s.data(), s.size(), DataType::kFloat32) {}
  Buffer(std::span<double> s)
      : Buffer(s.data(), s.size(), DataType::kFloat64) {}
  Buffer(std::span<int64_t> s) : Buffer(s.data(), s.size(), DataType::kInt64) {}

  int64_t size_bytes() const { return count * SizeOf(type); }

  void* data;     // Host memory, of any alignment.
  int64_t count;  // Elements, not bytes.
  DataType type;

 private:
  Buffer(void* data, size_t count, DataType type)
      : data(data), count(static_cast<int64_t>(count)), type(type) {}
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_BUFFER_H_
