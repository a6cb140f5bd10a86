// Controls of the stand-in for tests: the number of devices, the order in which
// streams run their work, faults of kernels and NCCL, and counts of calls.
#ifndef LOCKSTEP_STANDIN_CONTROL_H_
#define LOCKSTEP_STANDIN_CONTROL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "standin/include/cuda_runtime.h"
#include "standin/include/nccl.h"

namespace lockstep::standin {

// The devices of the host, and their properties that differ between hosts and
// drivers. Each device has its own UUID.
struct Devices {
  int count = 1;           // At least 1.
  bool one_bus = false;    // Whether all have one PCI bus, as MIG slices do.
  bool exclusive = false;  // Whether the compute mode allows one process only.
  // Whether queries of streams and events block while another thread waits for
  // the same device, as cudaFree and cudaDeviceSynchronize do.
  bool queries_wait_for_frees = false;
};

// Must not be called while another thread uses the runtime.
void SetDevices(const Devices& devices);

// Returns the devices that SetDevices has set.
Devices CurrentDevices();

// When streams run their work. Tests use it to find missing synchronisation.
enum class Order {
  // Work runs when it is put on a stream, unless it waits. The default.
  kAtOnce,
  // Nothing runs until the thread that made the stream next queries or waits
  // for a stream or an event. Then the oldest stream runs as far as events let
  // it, then the next oldest; or the newest stream runs first. The default
  // stream is the oldest and belongs to every thread whose current device is
  // its device. If a result depends on this order, the code lacks an event.
  //
  // A GPU does not wait for its host. So queries and waits of any thread also
  // run the work of streams that got no new work for a second. A thread may
  // also wait for another one, which queries an event for it without pauses:
  // ten queries in a row, each within a millisecond of the one before, also run
  // the work of all streams of the thread that made the event's stream.
  kOldestStreamFirst,
  kNewestStreamFirst,
};

// The planted bug: calls of cudaStreamWaitEvent that have no effect.
enum class DroppedWaits {
  kNone,
  kOfOlderStreams,  // Waits for events of a newer stream.
  kOfNewerStreams,  // Waits for events of an older stream.
};

// The order in which the blocks of a kernel run, one after the other. A GPU
// promises none. If a result depends on it, the kernel lacks an order.
enum class BlockOrder {
  kAscending,
  kDescending,
  kShuffled,  // An order that depends only on the number of blocks.
};

struct Schedule {
  Order order = Order::kAtOnce;
  DroppedWaits dropped_waits = DroppedWaits::kNone;
  // Each device counts its kernels that wait for memory, from 0. The kernel
  // with this number does not wait: a planted bug. -1: none.
  int64_t dropped_memory_wait = -1;
  BlockOrder block_order = BlockOrder::kAscending;
};

// Sets the schedule of the process. Must not be called while another thread
// uses the runtime or while work is under way.
void SetSchedule(const Schedule& schedule);

// The damage to data on its way between ranks.
enum class Damage {
  kNone,
  kLostTail,      // The last 8 bytes of a rank's data do not arrive. Data of
                  // fewer bytes do not arrive at all.
  kSwappedParts,  // The two halves of the data change places.
};

struct NcclFaults {
  // The result of ncclGetVersion, as 10000 major + 100 minor + patch.
  int version = 22809;
  // The rank whose ncclCommInitRankConfig never returns. That call of the other
  // ranks then does not return either, if it blocks. -1: none.
  int stalled_init_rank = -1;
  // The rank whose ncclCommInitRankConfig returns ncclSystemError at once. That
  // call of the other ranks never returns. -1: none.
  int failing_init_rank = -1;
  // The rank whose operations never start. -1: none.
  int stalled_rank = -1;
  // The rank whose operations start late. An operation starts after
  // `late_polls` queries of streams or events by any thread. Each millisecond
  // of a wait counts as a query. -1: none.
  int late_rank = -1;
  int64_t late_polls = 0;
  // The rank for which ncclCommGetAsyncError gives `error`, from its operation
  // number `error_from` on. An operation is a call or a group of calls. -1:
  // none.
  int failing_rank = -1;
  int64_t error_from = 0;
  ncclResult_t error = ncclSuccess;
  Damage damage = Damage::kNone;
  // Whether ncclCommWindowRegister makes windows.
  bool windows = true;
  // Whether a window lies on the host, as where NCCL has no symmetric memory.
  bool host_windows = false;
  // The number of consecutive ranks that reach each other's memory. If it does
  // not divide the number of ranks, their greatest common divisor is used. 0:
  // all ranks.
  int lsa_ranks = 0;
  // How long ncclCommFinalize and ncclCommAbort wait before they fail.
  std::chrono::milliseconds finalize_limit = std::chrono::seconds(10);
};

// Must not be called while another thread uses NCCL.
void SetNcclFaults(const NcclFaults& faults);

// Returns the description of the last fault of a kernel on any host thread, or
// "".
std::string LastFault();

// A node of a captured graph.
struct GraphNode {
  int64_t stream = 0;              // The stream's number, by age.
  std::vector<size_t> needs = {};  // The earlier nodes that it waits for.
};

// Returns the nodes of a graph: kernels, copies and NCCL groups, in the order
// in which they were captured.
std::vector<GraphNode> NodesOf(cudaGraph_t graph);

// Returns the number of bytes of pinned memory that are allocated and not
// freed.
int64_t LivePinnedBytes();

// Returns the number of communicators that are neither aborted nor destroyed.
int LiveNcclCommunicators();

// The calls that host threads have made.
struct CallCounts {
  // NCCL groups. A call outside a group counts as one.
  int64_t groups = 0;
  // Calls in which the host waits for the device, even if there was nothing to
  // wait for: cudaStreamSynchronize, cudaEventSynchronize,
  // cudaDeviceSynchronize, cudaMemcpy except from device to device,
  // cudaMemcpyAsync to memory that is not pinned, cudaFree, cudaFreeHost,
  // ncclMemFree and ncclCommFinalize. Queries are not counted.
  int64_t host_waits = 0;
  int64_t pinned_loads = 0;      // By kernels, of words of pinned host memory.
  int64_t launches = 0;          // Kernels, put on a stream or captured.
  int64_t allocations = 0;       // Of device memory and pinned memory.
  int64_t ordinary_streams = 0;  // Created with the lowest priority.
  int64_t communicators_destroyed = 0;  // By ncclCommDestroy.
  int64_t communicators_aborted = 0;
  // Windows that ncclCommAbort unmapped while a stream of the rank's device had
  // work, which may use them. On a GPU such a kernel ends in a fault.
  int64_t windows_unmapped_under_work = 0;
};

// Returns the calls of all threads since the last reset.
CallCounts Counts();
// Returns the calls of the calling thread since the last reset.
CallCounts CountsOfThisThread();
// Sets the counts of all threads to zero.
void ResetCounts();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_CONTROL_H_
