// What tests can make the stand-in runtime do: have several devices, and run
// the work of its streams in another order.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_

namespace lockstep::standin {

// How many devices there are: at least 1, the default. Each has a UUID of its
// own. Not while another thread uses the runtime.
void SetDeviceCount(int count);

// When streams run their work: for tests that look for missing synchronisation.
enum class Order {
  // Work runs as it is put on a stream, unless it waits. The default.
  kAtOnce,
  // Nothing runs before the thread that made the stream next asks a stream or
  // an event, or waits for one. Then the oldest stream runs as far as events
  // let it, then the next; or the newest first. Work on the default stream
  // still runs at once. Code whose result depends on the order lacks an event.
  kOldestStreamFirst,
  kNewestStreamFirst,
};

// Calls of cudaStreamWaitEvent that have no effect: planted bugs.
enum class DroppedWaits {
  kNone,
  kOfOlderStreams,  // For events that were recorded on a newer stream.
  kOfNewerStreams,  // For events that were recorded on an older stream.
};

struct Schedule {
  Order order = Order::kAtOnce;
  DroppedWaits dropped_waits = DroppedWaits::kNone;
};

// Holds for the process. Not while another thread uses the runtime, nor while
// work is under way.
void SetSchedule(const Schedule& schedule);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
