// Captures streams into graphs, and replays graphs. graph.cc also implements
// CUDA's functions for them (include/cuda_runtime.h). The caller of each
// function holds the device's lock.
#ifndef LOCKSTEP_STANDIN_GRAPH_H_
#define LOCKSTEP_STANDIN_GRAPH_H_

#include "standin/device.h"
#include "standin/include/device_code.h"

namespace lockstep::standin {

// Each check records and returns the call's error. An error invalidates the
// captures that the call conflicts with.

// Checks a call that puts work on a stream that is not captured.
cudaError_t CheckPut(const CUstream_st& stream);
// Checks a call that makes the host wait, queries, allocates or frees.
cudaError_t CheckUnsafe();
// Checks a call that queries a stream or an event, or waits for one.
cudaError_t CheckQuery(const CUstream_st& stream);
cudaError_t CheckQuery(const EventState& event);

// Checks a call that fails with `error` if the stream is captured.
cudaError_t CheckNotCaptured(const CUstream_st& stream, cudaError_t error);

// Records a node on a captured stream.
cudaError_t RecordNode(CUstream_st& stream, MakeWork make);
// Makes the stream wait for the event. At least one of the two is captured.
cudaError_t WaitInCapture(CUstream_st& stream, const EventState& event);

// Returns the work of the launches of a graph. Each run of it replays the graph
// once.
MakeWork ReplaysOf(cudaGraphExec_t executable);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_GRAPH_H_
