// What tests can make the stand-in do: have several devices, run the work of
// its streams in another order, and let NCCL go wrong.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_

#include <chrono>
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
  // let it, then the next; or the newest first. The default stream is the
  // oldest, and of every thread that has its device. Code whose result depends
  // on the order lacks an event.
  // As a GPU waits for nobody, work is held back for a second at most while
  // other threads ask or wait.
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
  // Of each device's kernels that wait for memory, number
  // `dropped_memory_wait` does not wait: a planted bug. -1 for none.
  int64_t dropped_memory_wait = -1;
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
  // This rank's ncclCommInitRankConfig never returns, nor, if they block, those
  // of the ranks that wait for it: -1 for none.
  int stalled_init_rank = -1;
  // This rank's operations never start: -1 for none.
  int stalled_rank = -1;
  // An operation of this rank starts only after threads have asked streams or
  // events `late_polls` times, where each millisecond of a wait is a question
  // too: -1 for none.
  int late_rank = -1;
  int64_t late_polls = 0;
  // From its operation number `error_from` on, ncclCommGetAsyncError gives this
  // rank `error`. -1 for none. An operation is a call, or a group of calls.
  int failing_rank = -1;
  int64_t error_from = 0;
  ncclResult_t error = ncclSuccess;
  Damage damage = Damage::kNone;
  // Whether there are windows.
  bool windows = true;
  // How many ranks, of consecutive numbers, reach each other's memory, as far
  // as that divides their number: 0 for all.
  int lsa_ranks = 0;
  // How long ncclCommFinalize and ncclCommAbort wait before they fail.
  std::chrono::milliseconds finalize_limit = std::chrono::seconds(10);
};

// Not while another thread uses NCCL.
void SetNcclFaults(const NcclFaults& faults);

// Bytes of pinned memory that were allocated and not freed.
int64_t LivePinnedBytes();

// Communicators that were neither aborted nor destroyed.
int LiveNcclCommunicators();

// What host threads have called.
struct CallCounts {
  // Of NCCL's calls: a call outside a group counts as one.
  int64_t groups = 0;
  // Calls in which the host waits for the device, whether or not there was
  // something to wait for: cudaStreamSynchronize, cudaEventSynchronize,
  // cudaDeviceSynchronize, cudaMemcpy but between places of device memory,
  // cudaMemcpyAsync to memory that is not pinned, cudaFree, cudaFreeHost and
  // ncclCommFinalize. Not queries.
  int64_t host_waits = 0;
  int64_t communicators_destroyed = 0;  // By ncclCommDestroy.
  int64_t communicators_aborted = 0;
};

// Of all threads since the last reset.
CallCounts Counts();
// Of the calling thread since the last reset.
CallCounts CountsOfThisThread();
// Sets the counts of all threads to zero.
void ResetCounts();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_CONTROL_H_
