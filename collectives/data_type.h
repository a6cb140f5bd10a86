// Element types that the collectives move and reduce.
#ifndef LOCKSTEP_COLLECTIVES_DATA_TYPE_H_
#define LOCKSTEP_COLLECTIVES_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

enum class DataType : int8_t {
  kFloat64,
  kFloat32,
  kFloat16,   // IEEE 754 binary16.
  kBFloat16,  // The upper half of a float32.
  kInt32,
  kInt64,
  kUInt8,
};

inline constexpr DataType kAllDataTypes[] = {
    DataType::kFloat64,  DataType::kFloat32, DataType::kFloat16,
    DataType::kBFloat16, DataType::kInt32,   DataType::kInt64,
    DataType::kUInt8};

// Bytes of one element.
constexpr int64_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kUInt8:
      break;
  }
  return 1;
}

// "float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8".
const char* Name(DataType type);
std::optional<DataType> ParseDataType(absl::string_view name);

// Storage of the two 16-bit types, which C++20 has no arithmetic for. Zero when
// value-initialised.
struct Float16 {
  uint16_t bits;
  friend bool operator==(Float16, Float16) = default;
};
struct BFloat16 {
  uint16_t bits;
  friend bool operator==(BFloat16, BFloat16) = default;
};

// The DataType of C++ types that have one.
template <typename T>
inline constexpr bool kHasDataType = false;
template <typename T>
inline constexpr DataType kDataTypeOf = DataType::kUInt8;

#define LOCKSTEP_DATA_TYPE(T, TYPE)             \
  template <>                                   \
  inline constexpr bool kHasDataType<T> = true; \
  template <>                                   \
  inline constexpr DataType kDataTypeOf<T> = TYPE;
LOCKSTEP_DATA_TYPE(double, DataType::kFloat64)
LOCKSTEP_DATA_TYPE(float, DataType::kFloat32)
LOCKSTEP_DATA_TYPE(Float16, DataType::kFloat16)
LOCKSTEP_DATA_TYPE(BFloat16, DataType::kBFloat16)
LOCKSTEP_DATA_TYPE(int32_t, DataType::kInt32)
LOCKSTEP_DATA_TYPE(int64_t, DataType::kInt64)
LOCKSTEP_DATA_TYPE(uint8_t, DataType::kUInt8)
LOCKSTEP_DATA_TYPE(std::byte, DataType::kUInt8)
#undef LOCKSTEP_DATA_TYPE

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_DATA_TYPE_H_
