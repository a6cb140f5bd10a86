// The stand-in's device: its streams and events, the schedule of their work,
// and the lock that guards all of it. All work runs under the lock.
#ifndef LOCKSTEP_STANDIN_DEVICE_H_
#define LOCKSTEP_STANDIN_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "standin/control.h"
#include "standin/include/device_code.h"

namespace lockstep::standin {

// A piece of work on a stream. Returns whether the work is done. If it is not,
// it is called again after other work has made progress.
using Work = std::function<bool()>;

// Makes a piece of work for each run. In a graph the work runs several times.
using MakeWork = std::function<Work()>;

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
  int device = 0;  // The current device when the event was made.
  bool timed = false;
  int64_t recorded = 0;     // The number of calls of cudaEventRecord.
  int64_t recorded_on = 0;  // The number of the last record's stream.
  int64_t reached = 0;      // The last record that its stream has run.
  // The queries in a row without pauses, and the time of the last one.
  int queries = 0;
  std::chrono::steady_clock::time_point queried = {};
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

// Guards the device, its streams and events, and the state of NCCL's stand-in.
extern Mutex device_mutex;

// The one device of the process, which stands for all devices that CUDA counts.
// Threads reach it through a DeviceLock.
class Device {
 public:
  using Streams = std::vector<std::unique_ptr<CUstream_st>>;

  // Returns the device. The caller holds a DeviceLock, or is work on a stream.
  static Device& Get() ABSL_ASSERT_EXCLUSIVE_LOCK(device_mutex);

  const Schedule& schedule() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
    return schedule_;
  }
  void SetSchedule(const Schedule& schedule)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

  // The streams, the oldest first. The devices' default streams come first.
  const Streams& streams() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
    return streams_;
  }
  void AddStream(std::unique_ptr<CUstream_st> stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Returns the stream, or null if it does not exist. The null handle is the
  // default stream of the current device.
  CUstream_st* Find(cudaStream_t stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Returns whether no stream of this device has work.
  bool IsIdle(int device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

  void AddEvent(cudaEvent_t event, std::shared_ptr<EventState> state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  bool RemoveEvent(cudaEvent_t event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
      device_mutex);  // Returns whether the event existed.
  // Returns the event's state, or null if it does not exist.
  std::shared_ptr<EventState> Find(cudaEvent_t event) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

  // Returns whether the schedule drops waits on one stream for events of
  // another.
  bool IsDropped(int64_t waited_for_on, int64_t recorded_on) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Counts a wait for memory of a kernel of the device. Returns whether the
  // schedule drops this wait.
  bool ShouldDropMemoryWait(int device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

  // Appends work to a stream. If the schedule holds nothing back, runs all work
  // that may run.
  void Append(CUstream_st& stream, Work work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Runs all work that may run, after a condition that work waits for has come
  // true.
  void RunWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Lets the work of a stream run that the schedule holds back.
  void Release(CUstream_st& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Handles a query by this thread: the work of its streams and of its device's
  // default stream may run. Work of other threads' streams may run too, if
  // nothing was put on the stream for a second: the stream's thread may not
  // query it at all.
  void Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Notes a query of an event, before Poll. If the event is queried without
  // pauses, releases all streams of the thread that made the event's stream,
  // since that thread may wait for the one that queries.
  void NoteQuery(EventState& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  // Returns how often threads have queried a stream or an event. Each
  // millisecond of a wait counts as a query.
  int64_t polls() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
    return polls_;
  }
  // Reports that unfinished work has changed something that other work waits
  // for. Only such work may call it.
  void NoteProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
    progressed_ = true;
  }

 private:
  friend class DeviceLock;

  bool WaitsForDefaultStream(const CUstream_st& stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  bool RunFront(CUstream_st& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  std::vector<CUstream_st*> StreamsInRunOrder() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);
  bool RunOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

  ConditionVariable done_;  // Notified when work was done.
  Schedule schedule_ ABSL_GUARDED_BY(device_mutex);
  // Whether the run under way did any work.
  bool progressed_ ABSL_GUARDED_BY(device_mutex) = false;
  // The threads that wait for each device.
  std::map<int, int> device_waits_ ABSL_GUARDED_BY(device_mutex);
  int64_t polls_ ABSL_GUARDED_BY(device_mutex) = 0;
  int64_t items_ ABSL_GUARDED_BY(device_mutex) = 0;
  int64_t streams_made_ ABSL_GUARDED_BY(device_mutex) = 0;
  // The kernels' waits so far, by device.
  std::map<int, int64_t> memory_waits_ ABSL_GUARDED_BY(device_mutex);
  Streams streams_ ABSL_GUARDED_BY(device_mutex);
  std::map<cudaEvent_t, std::shared_ptr<EventState>> events_
      ABSL_GUARDED_BY(device_mutex);
};

// Holds the device's lock, which also guards the state of NCCL's stand-in.
// Gives access to the device.
class ABSL_SCOPED_LOCKABLE DeviceLock {
 public:
  DeviceLock() ABSL_EXCLUSIVE_LOCK_FUNCTION(device_mutex)
      : lock_(device_mutex) {}
  ~DeviceLock() ABSL_UNLOCK_FUNCTION() {}

  Device* operator->() const { return &Device::Get(); }

  // Runs all work that may run until `ready` returns true. Returns false if
  // that takes longer than `limit`. Releases the lock while nothing can run.
  bool WaitUntil(const std::function<bool()>& ready,
                 std::chrono::milliseconds limit = std::chrono::hours(24));

  // Waits until `ready` returns true, which other host threads bring about.
  // Runs no work, so that a thread that never returns lets no stream run that
  // the schedule holds back.
  void WaitForHosts(const std::function<bool()>& ready);

  // Runs the work of the device's streams. Returns false if it is not all done
  // after `limit`.
  bool WaitForDevice(int device,
                     std::chrono::milliseconds limit = std::chrono::hours(24));

  // If the devices are set so (control.h), blocks until no thread waits for
  // the current device. Every query must call it first.
  void BeginQuery();

 private:
  MutexLock lock_;
};

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_DEVICE_H_
