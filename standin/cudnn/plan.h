// Graphs of operations of cuDNN's stand-in: which of them run, and their runs
// on device memory.
#ifndef LOCKSTEP_STANDIN_CUDNN_PLAN_H_
#define LOCKSTEP_STANDIN_CUDNN_PLAN_H_

#include <cstdint>
#include <map>
#include <span>

#include "absl/status/status.h"
#include "standin/cudnn/operations.h"

namespace lockstep::standin::cudnn {

// Returns kInvalidArgument if operations cannot run one after the other as one
// graph. The last operation's result must be in memory; other results may be.
absl::Status CheckGraph(std::span<const Operation> graph);

// Returns whether the stand-in's engine runs a graph that CheckGraph accepts:
// - convolutions with sums and ReLU, but as in cuDNN 9.19 no float32 gradients
//   of 16-bit activations;
// - one attention in 16 bits whose last strides are 1, with a depth of at most
//   128, a multiple of 8;
// - products of matrices in 16 bits, or of virtual matrices, with any
//   operations but convolutions and attention.
bool HasEngine(std::span<const Operation> graph);

// Returns the size of the memory that Run needs besides the tensors. Differs
// between shapes and is never 0.
int64_t WorkspaceBytes(std::span<const Operation> graph);

// The memory of one run.
struct GraphMemory {
  // Maps the numbers of tensors that are not virtual to their memory.
  std::map<int64_t, void*> tensors;
  void* workspace = nullptr;
  // The values of the tensors that are passed by value.
  std::map<int64_t, double> scalars;
};

// Returns kInvalidArgument if memory is missing, too small, not aligned or not
// on the device, or, for a tensor that is passed by value, on the device.
absl::Status CheckMemory(std::span<const Operation> graph,
                         const GraphMemory& memory);

// Fills memory.scalars from memory that CheckMemory accepts.
void ReadScalars(std::span<const Operation> graph, GraphMemory& memory);

// Runs the operations on memory that CheckMemory accepts, after ReadScalars.
// Overwrites the whole workspace with NaN before and after.
void Run(std::span<const Operation> graph, const GraphMemory& memory);

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_PLAN_H_
