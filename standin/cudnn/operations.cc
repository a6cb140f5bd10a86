#include "standin/cudnn/operations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "standin/cudnn/cudnn_graph.h"

namespace lockstep::standin::cudnn {
namespace {

using Kind = Operation::Kind;

absl::Status Mismatch(const Operation& op, const char* what) {
  std::string text = what;
  const char* separator = ": ";
  for (const auto& [name, t] : {std::pair{"x", &op.x},
                                {"w", &op.w},
                                {"v", &op.v},
                                {"scale", &op.scale},
                                {"stats", &op.stats},
                                {"y", &op.y}}) {
    if (!t->exists()) continue;
    absl::StrAppend(&text, separator, name, " [", absl::StrJoin(t->dims, ","),
                    "]");
    separator = ", ";
  }
  return absl::InvalidArgumentError(text);
}

absl::Status CheckConvolution(const Operation& op) {
  if (op.x.dims[0] != op.y.dims[0]) {
    return Mismatch(op, "x and y have different numbers of images");
  }
  if (op.x.dims[1] != op.w.dims[1] || op.y.dims[1] != op.w.dims[0]) {
    return Mismatch(op, "the channels do not match the weights");
  }
  for (size_t i = 0; i < 2; ++i) {
    if (op.strides[i] < 1 || op.dilations[i] < 1 || op.pre_paddings[i] < 0 ||
        op.post_paddings[i] < 0) {
      return Mismatch(
          op, "strides and dilations must be at least 1, paddings at least 0");
    }
    const int64_t kernel = (op.w.dims[2 + i] - 1) * op.dilations[i] + 1;
    const int64_t room =
        op.x.dims[2 + i] + op.pre_paddings[i] + op.post_paddings[i] - kernel;
    if (room < 0 || op.y.dims[2 + i] != room / op.strides[i] + 1) {
      return Mismatch(op, "y does not have the convolution's height and width");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPointwise(const Operation& op) {
  if (op.x.dims != op.y.dims) return Mismatch(op, "x and y differ");
  for (size_t i = 0; op.w.exists() && i < 4; ++i) {
    if (op.w.dims[i] != 1 && op.w.dims[i] != op.y.dims[i]) {
      return Mismatch(op, "the second operand cannot be broadcast");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSum(const Operation& op) {
  for (size_t i = 0; i < 4; ++i) {
    if (op.y.dims[i] != 1 && op.y.dims[i] != op.x.dims[i]) {
      return Mismatch(op, "y's dimensions are neither 1 nor those of x");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMatmul(const Operation& op) {
  const auto& [batch, heads, rows, inner] = op.x.dims;
  const int64_t columns = op.w.dims[3];
  if (op.w.dims != std::array{batch, heads, inner, columns}) {
    return Mismatch(op, "the factors do not match");
  }
  if (op.y.dims != std::array{batch, heads, rows, columns}) {
    return Mismatch(op, "y is not [batch, head, row of x, column of w]");
  }
  return absl::OkStatus();
}

// Returns the places of the elements in memory, in ascending order.
std::vector<int64_t> Offsets(const GraphTensor& t) {
  std::vector<int64_t> offsets = {0};
  for (size_t axis = 0; axis < 4; ++axis) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < t.dims[axis]; ++i) {
      for (const int64_t offset : offsets) {
        all.push_back(offset + i * t.strides[axis]);
      }
    }
    offsets = std::move(all);
  }
  std::ranges::sort(offsets);
  return offsets;
}

absl::Status CheckReshape(const Operation& op) {
  return Offsets(op.x) == Offsets(op.y)
             ? absl::OkStatus()
             : Mismatch(op, "x and y do not have the same places in memory");
}

absl::Status CheckAttention(const Operation& op) {
  const auto& [batch, heads, length, depth] = op.x.dims;
  if (op.w.dims != std::array{batch, heads, op.w.dims[2], depth} ||
      op.v.dims != op.w.dims) {
    return Mismatch(op, "the queries, keys and values do not match");
  }
  if (op.y.dims != op.x.dims) {
    return Mismatch(op, "the output and the queries differ");
  }
  if (op.stats.exists() &&
      (op.stats.dims != std::array{batch, heads, length, int64_t{1}} ||
       op.stats.is_16_bit())) {
    return Mismatch(op,
                    "stats is not a float32 tensor [batch, head, query, 1]");
  }
  if (op.scale.count() != 1 || op.scale.is_16_bit()) {
    return Mismatch(op, "the scale is not one float32 number");
  }
  return op.scale.is_by_value
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "the stand-in takes attention's scale by value only");
}

}  // namespace

int64_t GraphTensor::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return (last + 1) * SizeOf(TypeOf(type));
}

std::vector<const GraphTensor*> Operation::operands() const {
  switch (kind) {
    case Kind::kInputGradient:
      return {&w, &y};
    case Kind::kWeightGradient:
      return {&x, &y};
    case Kind::kRelu:
    case Kind::kExp:
    case Kind::kSum:
    case Kind::kReshape:
      return {&x};
    case Kind::kAttention:
      return {&x, &w, &v, &scale};
    default:
      return {&x, &w};
  }
}

std::vector<const GraphTensor*> Operation::results() const {
  if (stats.exists()) return {&y, &stats};
  return {kind == Kind::kInputGradient    ? &x
          : kind == Kind::kWeightGradient ? &w
                                          : &y};
}

absl::Status CheckOperation(const Operation& op) {
  if (op.is_convolution()) return CheckConvolution(op);
  if (op.is_pointwise()) return CheckPointwise(op);
  switch (op.kind) {
    case Kind::kSum:
      return CheckSum(op);
    case Kind::kMatmul:
      return CheckMatmul(op);
    case Kind::kReshape:
      return CheckReshape(op);
    default:
      return CheckAttention(op);
  }
}

}  // namespace lockstep::standin::cudnn
