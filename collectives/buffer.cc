#include "collectives/buffer.h"

namespace lockstep {

const char* Name(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kInt64:
      return "int64";
  }
  return "unknown type";
}

}  // namespace lockstep
