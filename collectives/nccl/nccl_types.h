// NCCL's names for our types and operations.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_TYPES_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_TYPES_H_

#include <nccl.h>

#include "collectives/data_type.h"
#include "collectives/reduce_op.h"

namespace lockstep {

constexpr ncclDataType_t NcclType(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUInt8:
      break;
  }
  return ncclUint8;
}

constexpr ncclRedOp_t NcclOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kAverage:
      break;
  }
  return ncclAvg;
}

// Whether NCCL reduces with the meaning that reduce_op.h gives the operation,
// but for the order. It does not for
//   16-bit floats        rounded at every addition;
//   averages of integers the sum wraps in the type;
//   min, max of floats   a NaN may be dropped.
// (Averages of float32 and float64 are sums of products with 1/P: as accurate.)
constexpr bool NcclKeepsMeaning(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return false;
    case DataType::kFloat32:
    case DataType::kFloat64:
      return op != ReduceOp::kMin && op != ReduceOp::kMax;
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
      break;
  }
  return op != ReduceOp::kAverage;
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_TYPES_H_
