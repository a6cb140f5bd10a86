// The operations of graphs of cuDNN's stand-in: their tensors, and the checks
// of their dimensions.
#ifndef LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_
#define LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "standin/cudnn/cudnn_graph.h"

namespace lockstep::standin::cudnn {

// Returns the element type of tensors.
inline DataType TypeOf(cudnnDataType_t type) {
  return type == CUDNN_DATA_HALF       ? DataType::kFloat16
         : type == CUDNN_DATA_BFLOAT16 ? DataType::kBFloat16
                                       : DataType::kFloat32;
}

// A tensor [n, c, h, w] of a graph. Weights are [k, c, r, s], and matrices
// [batch, head, row, column].
struct GraphTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  // At least 1 each; 0 for a tensor that an operation does not have.
  std::array<int64_t, 4> dims = {};
  std::array<int64_t, 4> strides = {};  // In elements.
  int64_t uid = 0;  // Tensors with the same number are the same tensor.
  int64_t alignment = 1;
  bool is_virtual = false;   // Not in memory: between two operations.
  bool is_by_value = false;  // One element, in the host's memory.

  bool exists() const { return dims[0] > 0; }
  bool is_16_bit() const { return type != CUDNN_DATA_FLOAT; }
  int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // Returns the number of bytes from the first element to the last element's
  // end.
  int64_t bytes() const;

  friend bool operator==(const GraphTensor&, const GraphTensor&) = default;
};

// One operation of a graph. All sums are in float64; each element of the result
// is rounded once, to the result's type.
struct Operation {
  enum class Kind {
    kForward,         // y from x and w.
    kInputGradient,   // x from y and w.
    kWeightGradient,  // w from x and y.
    kAdd,             // y = x + w. w's dimensions may be 1 where y's are not.
    kSubtract,        // y = x - w, as for kAdd.
    kMultiply,        // y = x w, as for kAdd.
    kRelu,            // y = max(x, 0). NaN stays NaN.
    kExp,             // y = e^x.
    kSum,      // y = x, summed over the dimensions in which only y has 1.
    kMatmul,   // y = x w, for each batch and head.
    kReshape,  // y is x's memory, read with y's dimensions and strides.
    // y = softmax(scale x w^T) v, for each batch and head. x, w, v and y are
    // the queries, the keys, the values and the output. `stats`, if it exists,
    // is [batch, head, query, 1]: the log of the sum of the exponentials of a
    // query's scores.
    kAttention,
  };

  bool is_convolution() const { return kind <= Kind::kWeightGradient; }
  // Returns whether the operation is elementwise.
  bool is_pointwise() const { return kind >= Kind::kAdd && kind <= Kind::kExp; }
  // Returns the tensors that the operation reads, and those that it writes. The
  // main result comes first.
  std::vector<const GraphTensor*> operands() const;
  std::vector<const GraphTensor*> results() const;

  Kind kind = Kind::kForward;
  GraphTensor x, w, y;
  GraphTensor v, scale, stats;  // Only attention has them.
  // A convolution's sizes, first for the height, then for the width.
  std::array<int64_t, 2> strides = {}, dilations = {};
  std::array<int64_t, 2> pre_paddings = {}, post_paddings = {};
};

// Errors: kInvalidArgument if the operation's dimensions do not match;
// kUnimplemented if attention's scale is not by value.
absl::Status CheckOperation(const Operation& operation);

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_
