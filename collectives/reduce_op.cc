#include "collectives/reduce_op.h"

#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProduct:
      return "prod";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAverage:
      return "avg";
  }
  return "unknown operation";
}

std::optional<ReduceOp> ParseReduceOp(absl::string_view name) {
  for (const ReduceOp op : kAllReduceOps) {
    if (name == Name(op)) return op;
  }
  return std::nullopt;
}

}  // namespace lockstep
