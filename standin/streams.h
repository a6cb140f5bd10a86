// The state of streams and events. The queues (queue.cc) and capture and replay
// (graph.cc) share it. The device's lock guards all of it.
#ifndef LOCKSTEP_STANDIN_STREAMS_H_
#define LOCKSTEP_STANDIN_STREAMS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "standin/control.h"
#include "standin/device_code.h"
#include "standin/queue.h"

namespace lockstep::standin {

// A dependency of a node on an earlier node. The earlier node was recorded on
// the same stream, or an event stood for it. Streams are given by their
// numbers.
struct Edge {
  size_t node = 0;
  bool crosses = false;       // Whether an event of another stream made it.
  int64_t recorded_on = 0;    // If so, the stream that recorded the event,
  int64_t waited_for_on = 0;  // and the stream that waited for it.
};

struct Node {
  MakeWork make;
  int64_t stream = 0;
  int priority = 0;
  std::vector<Edge> needs = {};
};

using Nodes = std::vector<Node>;

// The work recorded between cudaStreamBeginCapture and cudaStreamEndCapture.
struct Capture {
  cudaStream_t origin = nullptr;
  std::thread::id thread = {};
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false;
  Nodes nodes = {};
};

// The state of an event. Work on a stream may keep it after the event's handle
// is destroyed.
struct EventState {
  bool timed = false;
  int64_t recorded = 0;     // The number of calls of cudaEventRecord.
  int64_t recorded_on = 0;  // The number of the last record's stream.
  int64_t reached = 0;      // The last record that its stream has run.
  std::chrono::steady_clock::time_point time = {};
  // If the last record was on a captured stream: the capture, and the nodes
  // that the event stands for.
  std::shared_ptr<Capture> capture = {};
  std::vector<Edge> captured = {};
};

}  // namespace lockstep::standin

struct CUstream_st {
  struct Item {
    int64_t number;  // The position among all work put on any stream.
    lockstep::standin::Work work;
  };

  int64_t number = 0;  // 0 for a default stream; others count from 1.
  int device = 0;      // The current device when the stream was made.
  std::thread::id owner = {};
  bool blocking = false;   // With respect to its device's default stream.
  int priority = 0;        // A lower number is more urgent.
  bool destroyed = false;  // The stream is deleted when its work is done.
  size_t released = 0;     // How many pieces of its work may run.
  std::chrono::steady_clock::time_point last_put = {};
  std::deque<Item> work = {};
  // While the stream is captured: the capture, and the nodes that the stream's
  // next node depends on.
  std::shared_ptr<lockstep::standin::Capture> capture = {};
  std::vector<lockstep::standin::Edge> needs = {};
};

namespace lockstep::standin {

// Never destroyed, because destructors of static objects may use streams.
struct Queues {
  std::mutex mutex;
  std::condition_variable done;  // Notified when work was done.
  Schedule schedule;
  bool progressed = false;  // Whether the run under way did any work.
  int64_t polls = 0;
  int64_t items = 0;
  int64_t streams_made = 0;
  std::map<int, int64_t> memory_waits;  // The kernels' waits so far, by device.
  // The streams, the oldest first. The devices' default streams come first.
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::shared_ptr<EventState>> events;
};

Queues& All();

// Returns the stream, or null if it does not exist. The null handle is the
// default stream of the current device.
CUstream_st* Find(cudaStream_t stream);

// Returns whether the schedule drops waits on one stream for events of another.
bool IsDropped(int64_t waited_for_on, int64_t recorded_on);

// Checks of graph.cc. Each records and returns the call's error. An error
// invalidates the captures that the call conflicts with.

// Checks a call that puts work on a stream that is not captured.
cudaError_t CheckPut(const CUstream_st& stream);
// Checks a call that makes the host wait, queries, allocates or frees.
cudaError_t CheckUnsafe();
// Checks a call that queries a stream or an event, or waits for one.
cudaError_t CheckQuery(const CUstream_st& stream);
cudaError_t CheckQuery(const EventState& event);

// Records a node on a captured stream.
cudaError_t RecordNode(CUstream_st& stream, MakeWork make);
// Makes the stream wait for the event. At least one of the two is captured.
cudaError_t WaitInCapture(CUstream_st& stream, const EventState& event);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_STREAMS_H_
