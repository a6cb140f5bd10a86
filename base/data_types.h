// Element types: their names and sizes, and the arithmetic that C++20 lacks for
// the 16-bit floats.
#ifndef LOCKSTEP_BASE_DATA_TYPES_H_
#define LOCKSTEP_BASE_DATA_TYPES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

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

// Returns the size of one element in bytes.
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

// Returns "float64", "float32", "float16", "bfloat16", "int32", "int64" or
// "uint8".
constexpr const char* Name(DataType type) {
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16",
                                    "int32",   "int64",   "uint8"};
  static_assert(std::size(kNames) == std::size(kAllDataTypes));
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown type";
}

// The storage of the two 16-bit types, for which C++20 has no arithmetic. The
// value is zero when value-initialised.
struct Float16 {
  uint16_t bits;
  friend bool operator==(Float16, Float16) = default;
};
struct BFloat16 {
  uint16_t bits;
  friend bool operator==(BFloat16, BFloat16) = default;
};

// Map a C++ type to its DataType, if it has one.
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

// Returns fn(an element of the type).
template <typename Fn>
constexpr decltype(auto) WithDataType(DataType type, Fn fn) {
  switch (type) {
    case DataType::kFloat64:
      return fn(double());
    case DataType::kFloat32:
      return fn(float());
    case DataType::kFloat16:
      return fn(Float16());
    case DataType::kBFloat16:
      return fn(BFloat16());
    case DataType::kInt32:
      return fn(int32_t());
    case DataType::kInt64:
      return fn(int64_t());
    case DataType::kUInt8:
      break;
  }
  return fn(uint8_t());
}

// Conversions between the 16-bit floats and float32.
//
// Widening is exact. Narrowing rounds to nearest, ties to even; a number that
// is too large becomes infinity. A NaN becomes quiet; it keeps its sign and as
// much of its payload as fits. For float16 the bits equal those of x86's F16C.
//
// The code has no branches and no variable shifts, so that loops over these
// functions vectorise. It assumes the default rounding mode.

constexpr float ToFloat(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  const auto magnitude = static_cast<int32_t>(bits & 0x7fff'ffff);
  const bool is_nan = magnitude > 0x7f80'0000;
  return std::bit_cast<float>(is_nan ? bits | 0x0040'0000 : bits);
}

constexpr float ToFloat(Float16 x) {
  const uint32_t sign = (uint32_t{x.bits} & 0x8000) << 16;
  const int32_t magnitude = x.bits & 0x7fff;
  // The exponent moves from bit 10 to bit 23, and its bias from 15 to 127.
  const int32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  // Infinity and NaN have the largest exponent in both formats.
  const int32_t special = normal + ((255 - 31 - (127 - 15)) << 23);
  const int32_t nan = special | 0x0040'0000;
  // The number is a multiple of float16's smallest subnormal number, and in
  // float32 it is a normal number.
  const int32_t subnormal =
      std::bit_cast<int32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  int32_t bits = magnitude < 0x0400 ? subnormal : normal;
  bits = magnitude >= 0x7c00 ? special : bits;
  bits = magnitude > 0x7c00 ? nan : bits;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(bits));
}

constexpr BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto magnitude = static_cast<int32_t>(bits & 0x7fff'ffff);
  // Adds just under half of the last place that stays, or exactly half if the
  // last place is odd. A carry into the exponent is correct, up to infinity.
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const uint32_t nan = bits | 0x0040'0000;
  const bool is_nan = magnitude > 0x7f80'0000;
  return {static_cast<uint16_t>((is_nan ? nan : rounded) >> 16)};
}

constexpr Float16 ToFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto magnitude = static_cast<int32_t>(bits & 0x7fff'ffff);
  // The same rounding as for bfloat16, with 13 places to drop and another bias.
  // The result for a small number is meaningless, but it is in range and is not
  // used.
  const int32_t normal =
      (magnitude - ((127 - 15) << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  // The last place of 0.5 is 2^-24, the smallest subnormal number. The addition
  // therefore rounds to a multiple of 2^-24, and the lowest bits count the
  // multiples.
  const int32_t subnormal =
      std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      std::bit_cast<int32_t>(0.5f);
  const int32_t nan = 0x7e00 | ((magnitude >> 13) & 0x01ff);
  int32_t half = magnitude < 0x3880'0000 ? subnormal : normal;  // 2^-14.
  half = magnitude >= 0x4780'0000 ? 0x7c00 : half;              // 2^16.
  half = magnitude > 0x7f80'0000 ? nan : half;
  const auto sign = static_cast<int32_t>((bits >> 16) & 0x8000);
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_DATA_TYPES_H_
