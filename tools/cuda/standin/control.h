// How many devices the stand-in has: for tests of several GPUs.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_

namespace lockstep::standin {

// At least 1, which is also what there is without this call. Each device has a
// UUID of its own. Not while another thread uses the runtime.
void SetDeviceCount(int count);

}  // namespace lockstep::standin

// When the stand-in's streams run their work: for tests that look for missing
// synchronisation. One schedule holds for the process.

namespace lockstep::standin {

enum class Order {
  // Work runs as it is put on a stream, unless it waits. What there is without
  // SetSchedule.
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

// Not while another thread uses the runtime, nor while work is under way.
void SetSchedule(const Schedule& schedule);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
