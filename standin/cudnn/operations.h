// The operations of cuDNN's stand-in on tensors in device memory.
#ifndef LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_
#define LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <span>
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

// A tensor [n, c, h, w] of a graph. Weights are [k, c, r, s].
struct GraphTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> dims = {};     // At least 1 each.
  std::array<int64_t, 4> strides = {};  // In elements.
  int64_t uid = 0;  // Tensors with the same number are the same tensor.
  int64_t alignment = 1;
  bool is_virtual = false;  // Not in memory: between two operations.

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
    kRelu,            // y = max(x, 0). NaN stays NaN. w is unused.
  };

  const GraphTensor& result() const {
    return kind == Kind::kInputGradient    ? x
           : kind == Kind::kWeightGradient ? w
                                           : y;
  }
  // Returns the tensors that the operation reads.
  std::vector<const GraphTensor*> operands() const;

  Kind kind = Kind::kForward;
  GraphTensor x, w, y;
  // A convolution's sizes, first for the height, then for the width.
  std::array<int64_t, 2> strides = {}, dilations = {};
  std::array<int64_t, 2> pre_paddings = {}, post_paddings = {};
};

// Return kInvalidArgument if an operation's dimensions do not match, or if
// operations cannot run one after the other as one graph.
absl::Status CheckOperation(const Operation& operation);
absl::Status CheckGraph(std::span<const Operation> graph);

// Returns the size of the memory that Run needs besides the tensors. Differs
// between graphs and is never 0.
int64_t WorkspaceBytes(std::span<const Operation> graph);

// The memory of one run: the tensors that are not virtual, by their numbers,
// and the workspace.
struct GraphMemory {
  std::map<int64_t, void*> tensors;
  void* workspace = nullptr;
};

// Returns kInvalidArgument if memory is missing, too small, not aligned or not
// on the device.
absl::Status CheckMemory(std::span<const Operation> graph,
                         const GraphMemory& memory);

// Runs the operations on memory that CheckMemory accepts. Overwrites the whole
// workspace with NaN before and after.
void Run(std::span<const Operation> graph, const GraphMemory& memory);

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_OPERATIONS_H_
