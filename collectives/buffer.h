// Typed views of the memory that a collective reads or writes.
#ifndef LOCKSTEP_COLLECTIVES_BUFFER_H_
#define LOCKSTEP_COLLECTIVES_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>

#include "collectives/data_type.h"

namespace lockstep {

template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T>
inline constexpr bool kIsSpan<std::span<T>> = true;

// What a range's elements are declared as, const or not.
template <typename Range>
using ElementOf =
    std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>;

// Arrays, vectors and spans of elements that have a DataType (std::byte stands
// for uint8), which outlive the expression that they stand in.
template <typename Range>
concept ElementRange =
    (std::is_lvalue_reference_v<Range> ||
     kIsSpan<std::remove_cvref_t<Range>>)&&requires(Range& range) {
  std::size(range);
}
&&kHasDataType<std::remove_const_t<ElementOf<Range>>>;

// Elements that a collective writes, of any alignment. Host memory, or for the
// NCCL backend device memory. Borrowed: the caller keeps it alive and does not
// touch it until the call, or its handle, is done.
struct Buffer {
  constexpr Buffer() = default;
  constexpr Buffer(void* data, int64_t count, DataType type)
      : data(data), count(count), type(type) {}
  template <ElementRange Range>
  requires(!std::is_const_v<ElementOf<Range>>) Buffer(Range&& range)
      : Buffer(std::data(range), static_cast<int64_t>(std::size(range)),
               kDataTypeOf<ElementOf<Range>>) {}

  int64_t size_bytes() const { return count * SizeOf(type); }
  std::byte* bytes() const { return static_cast<std::byte*>(data); }
  // Elements [begin, begin + size).
  Buffer Part(int64_t begin, int64_t size) const {
    return {bytes() + begin * SizeOf(type), size, type};
  }

  void* data = nullptr;
  int64_t count = 0;  // Elements, not bytes.
  DataType type = DataType::kUInt8;
};

// The same, for elements that a collective only reads.
struct ConstBuffer {
  constexpr ConstBuffer() = default;
  constexpr ConstBuffer(const void* data, int64_t count, DataType type)
      : data(data), count(count), type(type) {}
  ConstBuffer(const Buffer& b) : ConstBuffer(b.data, b.count, b.type) {}
  template <ElementRange Range>
  ConstBuffer(Range&& range)
      : ConstBuffer(std::data(range), static_cast<int64_t>(std::size(range)),
                    kDataTypeOf<std::remove_const_t<ElementOf<Range>>>) {}

  int64_t size_bytes() const { return count * SizeOf(type); }
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  ConstBuffer Part(int64_t begin, int64_t size) const {
    return {bytes() + begin * SizeOf(type), size, type};
  }

  const void* data = nullptr;
  int64_t count = 0;
  DataType type = DataType::kUInt8;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_BUFFER_H_
