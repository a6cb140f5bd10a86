#include "standin/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "standin/control.h"
#include "standin/device.h"
#include "standin/include/cuda_runtime.h"
#include "standin/include/device_code.h"
#include "standin/runtime.h"

namespace lockstep::standin {
namespace {

constinit thread_local cudaStreamCaptureMode thread_mode =
    cudaStreamCaptureModeGlobal;

cudaError_t Invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return Record(error);
}

void AddDependency(std::vector<Edge>& needs, const Edge& edge) {
  for (Edge& each : needs) {
    if (each.node != edge.node) continue;
    if (!edge.crosses) each = edge;  // No schedule drops it.
    return;
  }
  needs.push_back(edge);
}

// Returns whether all nodes precede the nodes of `needs`, or are among them.
bool IsJoined(const Nodes& nodes, const std::vector<Edge>& needs) {
  std::vector<bool> reached(nodes.size());
  for (const Edge& edge : needs) reached[edge.node] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!reached[i]) return false;
    for (const Edge& edge : nodes[i].needs) reached[edge.node] = true;
  }
  return true;
}

// One run of a graph.
class Replay {
 public:
  Replay(std::shared_ptr<const Nodes> nodes, bool uses_priorities)
      : nodes_(std::move(nodes)), left_(nodes_->size()) {
    for (const Node& node : *nodes_) work_.push_back(node.make());
    order_.resize(nodes_->size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::stable_sort(order_, {}, [&](size_t i) {
      const Node& node = (*nodes_)[i];
      const Order order = Device::Get().schedule().order;
      const int64_t place = order == Order::kAtOnce              ? 0
                            : order == Order::kOldestStreamFirst ? node.stream
                                                                 : -node.stream;
      return std::tuple(uses_priorities ? node.priority : 0, place);
    });
  }

  // Runs all nodes that may run. Returns whether all nodes are done.
  bool Run() {
    while (
        std::ranges::any_of(order_, [this](size_t i) { return RunNode(i); })) {
      Device::Get().NoteProgress();
    }
    return done();
  }

  bool done() const { return left_ == 0; }

 private:
  bool RunNode(size_t i) {
    if (work_[i] == nullptr) return false;
    for (const Edge& edge : (*nodes_)[i].needs) {
      const bool dropped =
          edge.crosses &&
          Device::Get().IsDropped(edge.waited_for_on, edge.recorded_on);
      if (!dropped && work_[edge.node] != nullptr) return false;
    }
    if (!work_[i]()) return false;
    work_[i] = nullptr;
    --left_;
    return true;
  }

  const std::shared_ptr<const Nodes> nodes_;
  std::vector<Work> work_;     // Null when done.
  std::vector<size_t> order_;  // The order in which ready nodes run.
  size_t left_;
};

}  // namespace

cudaError_t CheckPut(const CUstream_st& stream) {
  if (stream.number != 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& each : Device::Get().streams()) {
    if (each->capture != nullptr && each->blocking &&
        each->device == stream.device) {
      error = Invalidate(*each->capture, cudaErrorStreamCaptureImplicit);
    }
  }
  return error;
}

cudaError_t CheckUnsafe() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& each : Device::Get().streams()) {
    Capture* const capture = each->capture.get();
    if (capture == nullptr) continue;
    const bool mine = capture->thread == std::this_thread::get_id();
    if (mine ? capture->mode != cudaStreamCaptureModeRelaxed
             : capture->mode == cudaStreamCaptureModeGlobal &&
                   thread_mode == cudaStreamCaptureModeGlobal) {
      error = Invalidate(*capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return error;
}

cudaError_t CheckNotCaptured(const CUstream_st& stream, cudaError_t error) {
  return stream.capture == nullptr ? cudaSuccess
                                   : Invalidate(*stream.capture, error);
}

cudaError_t CheckQuery(const CUstream_st& stream) {
  cudaError_t error =
      CheckNotCaptured(stream, cudaErrorStreamCaptureUnsupported);
  if (error == cudaSuccess) error = CheckPut(stream);
  return error == cudaSuccess ? CheckUnsafe() : error;
}

cudaError_t CheckQuery(const EventState& event) {
  if (event.capture != nullptr) {
    return Invalidate(*event.capture, cudaErrorCapturedEvent);
  }
  return CheckUnsafe();
}

cudaError_t RecordNode(CUstream_st& stream, MakeWork make) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return Record(cudaErrorStreamCaptureInvalidated);
  capture.nodes.push_back({std::move(make), stream.number, stream.priority,
                           std::exchange(stream.needs, {})});
  stream.needs = {{.node = capture.nodes.size() - 1}};
  return cudaSuccess;
}

cudaError_t WaitInCapture(CUstream_st& stream, const EventState& event) {
  if (event.capture == nullptr) {
    return Invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  }
  if (event.capture->origin == nullptr) {  // The capture has ended.
    return stream.capture == nullptr
               ? Record(cudaErrorCapturedEvent)
               : Invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  }
  if (stream.capture != nullptr && stream.capture != event.capture) {
    Invalidate(*stream.capture, cudaErrorStreamCaptureMerge);
    return Invalidate(*event.capture, cudaErrorStreamCaptureMerge);
  }
  if (stream.number == 0) {
    return Invalidate(*event.capture, cudaErrorStreamCaptureImplicit);
  }
  if (event.capture->invalid) return Record(cudaErrorStreamCaptureInvalidated);
  stream.capture = event.capture;
  for (Edge edge : event.captured) {
    edge.crosses = event.recorded_on != stream.number;
    edge.recorded_on = event.recorded_on;
    edge.waited_for_on = stream.number;
    AddDependency(stream.needs, edge);
  }
  return cudaSuccess;
}

}  // namespace lockstep::standin

struct CUgraph_st {
  std::shared_ptr<const lockstep::standin::Nodes> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const lockstep::standin::Nodes> nodes;
  bool uses_priorities = false;
  std::weak_ptr<const lockstep::standin::Replay> last;
};

lockstep::standin::MakeWork lockstep::standin::ReplaysOf(
    cudaGraphExec_t executable) {
  return [executable] {
    const auto replay = std::make_shared<Replay>(executable->nodes,
                                                 executable->uses_priorities);
    const auto before = std::exchange(executable->last, replay);
    return [replay, before] {
      const auto still = before.lock();
      return (still == nullptr || still->done()) && replay->Run();
    };
  };
}

std::vector<lockstep::standin::GraphNode> lockstep::standin::NodesOf(
    cudaGraph_t graph) {
  std::vector<GraphNode> nodes;
  for (const Node& node : *graph->nodes) {
    nodes.push_back({.stream = node.stream});
    for (const Edge& edge : node.needs) {
      nodes.back().needs.push_back(edge.node);
    }
  }
  return nodes;
}

using lockstep::standin::Capture;
using lockstep::standin::DeviceLock;
using lockstep::standin::Invalidate;
using lockstep::standin::Nodes;
using lockstep::standin::Record;
using lockstep::standin::Replay;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, lockstep::standin::thread_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  const DeviceLock lock;
  CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  if (found->number == 0) return Record(cudaErrorStreamCaptureUnsupported);
  if (found->capture != nullptr) {
    return Invalidate(*found->capture, cudaErrorIllegalState);
  }
  found->capture = std::make_shared<Capture>(Capture{
      .origin = stream, .thread = std::this_thread::get_id(), .mode = mode});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status) {
  const DeviceLock lock;
  const CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = lockstep::standin::CheckPut(*found);
  if (error != cudaSuccess) return error;
  *status = found->capture == nullptr ? cudaStreamCaptureStatusNone
            : found->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const DeviceLock lock;
  CUstream_st* const found = lock->Find(stream);
  if (found == nullptr) return Record(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = found->capture;
  if (capture == nullptr) return Record(cudaErrorIllegalState);
  if (capture->origin != stream) {
    return Invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return Invalidate(*capture, cudaErrorStreamCaptureWrongThread);
  }
  const bool joined = lockstep::standin::IsJoined(capture->nodes, found->needs);
  for (const auto& each : lock->streams()) {
    if (each->capture != capture) continue;
    each->capture = nullptr;
    each->needs.clear();
  }
  capture->origin = nullptr;
  Nodes nodes = std::move(capture->nodes);
  if (capture->invalid) return Record(cudaErrorStreamCaptureInvalidated);
  if (!joined) return Record(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::make_shared<const Nodes>(std::move(nodes))};
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                              size_t* count) {
  if (nodes != nullptr) return Record(cudaErrorNotSupported);
  *count = graph->nodes->size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if ((flags & ~cudaGraphInstantiateFlagUseNodePriority) != 0) {
    return Record(cudaErrorNotSupported);
  }
  *executable = new CUgraphExec_st{
      .nodes = graph->nodes, .uses_priorities = flags != 0, .last = {}};
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const DeviceLock lock;
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const DeviceLock lock;
  delete graph;
  return cudaSuccess;
}
