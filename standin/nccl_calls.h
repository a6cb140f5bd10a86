// The parts of NCCL's stand-in: communicators, the matching of the ranks'
// calls, and the transfer of their data. The device's lock (device.h) guards
// all state.
#ifndef LOCKSTEP_STANDIN_NCCL_CALLS_H_
#define LOCKSTEP_STANDIN_NCCL_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/include/nccl.h"

namespace lockstep::standin {

enum class NcclCall {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};

// One rank's call.
struct NcclOperation {
  NcclCall call;
  const void* send;
  void* receive;
  size_t count;  // The argument of the call.
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // The other rank of a message, or the root.
};

// A call in which a rank's host waits for the hosts of the other ranks.
struct HostCall {
  char* memory = nullptr;
  size_t bytes = 0;
};

struct World;

// The calls of one rank's group on one stream. They start and end together.
struct Batch {
  std::shared_ptr<World> world = {};
  int rank = 0;
  cudaStream_t stream = nullptr;
  std::vector<NcclOperation> operations = {};
  std::vector<int64_t> numbers = {};  // For each operation, the number of the
                                      // collective call in its world; -1 for a
                                      // message.
  Damage damage = Damage::kNone;
  bool started = false;
  bool aborted = false;
  size_t pending = 0;
  // The batch of the same device that was called before this one, if NCCL
  // orders launches. Empty once it has ended.
  std::weak_ptr<Batch> earlier = {};

  bool has_ended() const { return aborted || (started && pending == 0); }
};

struct Pending {
  Batch* batch;
  const NcclOperation* operation;
};

// The state that the ranks of one unique id share.
struct World {
  int size = 0;
  std::vector<int> devices = {};  // By rank; -1 before it joins.
  std::map<int64_t, std::map<int, Pending>> collectives = {};  // By number and
                                                               // rank.
  std::map<std::pair<int, int>, std::deque<Pending>> sends = {};
  std::map<std::pair<int, int>, std::deque<Pending>> receives = {};
  // The calls in which the ranks' hosts wait for each other, by number and
  // rank.
  std::map<int64_t, std::map<int, HostCall>> host_calls = {};
};

struct NcclState {
  NcclFaults faults;
  uint64_t ids = 0;
  int live = 0;
  std::map<uint64_t, std::shared_ptr<World>> worlds;
  // The last batch that was called on each device.
  std::map<int, std::weak_ptr<Batch>> last_batches;
};

NcclState& GlobalNcclState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex);

// Returns the size of an element, or 0 if the type is not modelled.
size_t SizeOf(ncclDataType_t type);

// Returns the bytes that `rank` reads from `send` or writes to `receive` in a
// call of `size` ranks; 0 if the rank does not use that buffer.
size_t SentBytes(const NcclOperation& operation, int rank, int size);
size_t ReceivedBytes(const NcclOperation& operation, int rank, int size);

// Starts a batch: offers its calls to the other ranks. A call is done when
// every call that it needs has started. Then `pending` decreases by one.
void Start(Batch& batch);

// Removes the calls of a batch that other ranks have not matched yet.
void Withdraw(Batch& batch);

}  // namespace lockstep::standin

struct ncclComm {
  ncclComm(std::shared_ptr<lockstep::standin::World> world, int rank,
           bool orders_launches)
      : world(std::move(world)), rank(rank), orders_launches(orders_launches) {}

  const std::shared_ptr<lockstep::standin::World> world;
  const int rank;
  // Whether its kernels run after those that were called earlier on its device.
  const bool orders_launches;
  // Shared with the graphs that recorded calls of the communicator. The pointer
  // becomes null when the communicator is aborted.
  const std::shared_ptr<ncclComm*> self = std::make_shared<ncclComm*>(this);
  bool finalized = false;
  int64_t collectives = 0;
  int64_t batches = 0;
  std::vector<std::weak_ptr<lockstep::standin::Batch>> submitted = {};
  int64_t host_calls = 0;
  std::set<ncclWindow_t> windows = {};
};

#endif  // LOCKSTEP_STANDIN_NCCL_CALLS_H_
