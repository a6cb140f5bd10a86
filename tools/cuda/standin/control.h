// What tests can make the stand-in do: have several devices, run the work of
// its streams in another order, and let NCCL go wrong.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_

#include <cstdint>

#include "tools/cuda/standin/include/nccl.h"

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

// What happens to data on its way.
enum class Damage {
  kNone,
  kLostTail,      // The last 8 bytes of a rank's data (all, if it has fewer) do
                  // not arrive.
  kSwappedParts,  // The halves of it change places.
};

struct NcclFaults {
  // What ncclGetVersion says, as 10000 major + 100 minor + patch.
  int version = 22809;
  // This rank's operations never start: -1 for none.
  int stalled_rank = -1;
  // From its operation number `error_from` on, ncclCommGetAsyncError gives this
  // rank `error`. -1 for none. An operation is a call, or a group of calls.
  int failing_rank = -1;
  int64_t error_from = 0;
  ncclResult_t error = ncclSuccess;
  Damage damage = Damage::kNone;
};

// Not while another thread uses NCCL.
void SetNcclFaults(const NcclFaults& faults);

// Communicators that were neither aborted nor destroyed.
int LiveNcclCommunicators();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
