// What streams and events are made of: shared by the queues (queue.cc) and by
// capture and replay (graph.cc). The device's lock guards all of it.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_STREAMS_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_STREAMS_H_

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

#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/device_code.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {

// A node waits for another: one that the same stream recorded before, or one
// that an event stood for. Streams go by their numbers.
struct Edge {
  size_t node = 0;
  bool crosses = false;       // Is an event's.
  int64_t recorded_on = 0;    // If so, the stream that recorded the event,
  int64_t waited_for_on = 0;  // and the one that waited for it.
};

struct Node {
  MakeWork make;
  int64_t stream = 0;
  int priority = 0;
  std::vector<Edge> needs = {};
};

using Nodes = std::vector<Node>;

// What is recorded between cudaStreamBeginCapture and cudaStreamEndCapture.
struct Capture {
  cudaStream_t origin = nullptr;
  std::thread::id thread = {};
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false;
  Nodes nodes = {};
};

// Outlives its handle while work on a stream names it.
struct EventState {
  bool timed = false;
  int64_t recorded = 0;     // How often cudaEventRecord was called.
  int64_t recorded_on = 0;  // The number of the last record's stream.
  int64_t reached = 0;      // Which of these records the work has come past.
  std::chrono::steady_clock::time_point time = {};
  // Of the last record, if it was on a stream that is captured: what it stands
  // for there.
  std::shared_ptr<Capture> capture = {};
  std::vector<Edge> captured = {};
};

}  // namespace lockstep::standin

struct CUstream_st {
  struct Item {
    int64_t number;  // Counts the work that was put on any stream.
    lockstep::standin::Work work;
  };

  int64_t number = 0;  // The default streams'; others count up.
  int device = 0;      // Current when it was made.
  std::thread::id owner = {};
  bool blocking = false;   // With respect to its device's default stream.
  int priority = 0;        // Less is more urgent.
  bool destroyed = false;  // Goes once its work is done.
  size_t released = 0;     // How many pieces of its work may run.
  std::chrono::steady_clock::time_point last_put = {};
  std::deque<Item> work = {};
  // While it is captured: where, and what its next node needs.
  std::shared_ptr<lockstep::standin::Capture> capture = {};
  std::vector<lockstep::standin::Edge> needs = {};
};

namespace lockstep::standin {

// Never destroyed, since other destructors may use streams.
struct Queues {
  std::mutex mutex;
  std::condition_variable done;  // Some work was.
  Schedule schedule;
  bool progressed = false;  // In the run that is under way.
  int64_t polls = 0;
  int64_t items = 0;
  int64_t streams_made = 0;
  std::map<int, int64_t> memory_waits;  // So far, by device.
  // The oldest first, of which the devices' default streams are the oldest.
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::shared_ptr<EventState>> events;
};

Queues& All();

// Null if there is no such stream. The null stream is the default one of the
// current device.
CUstream_st* Find(cudaStream_t stream);

// Whether the schedule drops waits on one stream for events of another.
bool IsDropped(int64_t waited_for_on, int64_t recorded_on);

// Of graph.cc. Each returns the error that the call has, which it notes; all
// but cudaSuccess invalidate the captures that the call is at odds with.

// For a call that puts work on the stream, of one that is not captured.
cudaError_t CheckPut(const CUstream_st& stream);
// For a call that waits for the host, asks, allocates or frees.
cudaError_t CheckUnsafe();
// For one that waits for a stream or an event, or asks it.
cudaError_t CheckAsk(const CUstream_st& stream);
cudaError_t CheckAsk(const EventState& event);

// Records on a stream that is captured.
cudaError_t RecordNode(CUstream_st& stream, MakeWork make);
// The stream waits for the event; one of them at least is of a capture.
cudaError_t WaitInCapture(CUstream_st& stream, const EventState& event);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_STREAMS_H_
