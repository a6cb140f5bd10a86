#include "base/data_types.h"

#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

const char* Name(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return "float64";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kUInt8:
      return "uint8";
  }
  return "unknown type";
}

std::optional<DataType> ParseDataType(absl::string_view name) {
  for (const DataType type : kAllDataTypes) {
    if (name == Name(type)) return type;
  }
  return std::nullopt;
}

}  // namespace lockstep
