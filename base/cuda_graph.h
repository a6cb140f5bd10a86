// Graphs of the work that is put on a stream.
#ifndef LOCKSTEP_BASE_CUDA_GRAPH_H_
#define LOCKSTEP_BASE_CUDA_GRAPH_H_

#include <cuda_runtime.h>

#include <memory>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"

namespace lockstep {

// Owns a graph that can be launched.
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>,
                              CudaDeleter<&cudaGraphExecDestroy>>;

// Captures what `enqueue` puts on the stream and on streams that join it, as
// ThreadLocal captures do. A node runs with the priority of its stream. The
// stream is no longer captured afterwards, with or without an error. Errors:
// those of `enqueue`; CudaStatus's.
inline absl::StatusOr<Graph> CaptureGraph(
    cudaStream_t stream, absl::FunctionRef<absl::Status()> enqueue) {
  absl::Status status = CudaStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
      "cudaStreamBeginCapture");
  if (!status.ok()) return status;
  status = enqueue();
  cudaGraph_t captured = nullptr;
  status.Update(CudaStatus(cudaStreamEndCapture(stream, &captured),
                           "cudaStreamEndCapture"));
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>,
                        CudaDeleter<&cudaGraphDestroy>>
      owner(captured);
  cudaGraphExec_t graph = nullptr;
  if (status.ok()) {
    status = CudaStatus(
        cudaGraphInstantiate(&graph, captured,
                             cudaGraphInstantiateFlagUseNodePriority),
        "cudaGraphInstantiate");
  }
  if (!status.ok()) return status;
  return Graph(graph);
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_GRAPH_H_
