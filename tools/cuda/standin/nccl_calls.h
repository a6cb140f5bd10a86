// What NCCL's stand-in consists of: communicators, how the calls of their ranks
// meet, and what is then done to their memory. The device's lock (queue.h)
// guards all of it.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_CALLS_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/include/nccl.h"

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
  size_t count;  // As the function's argument has it.
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // Or root.
};

// A call in which a rank's host waits for the others'.
struct HostCall {
  char* memory = nullptr;
  size_t bytes = 0;
};

struct World;

// Calls of one rank that start and end together on one stream: a group's.
struct Batch {
  std::shared_ptr<World> world = {};
  int rank = 0;
  cudaStream_t stream = nullptr;
  std::vector<NcclOperation> operations = {};
  std::vector<int64_t> numbers = {};  // Of the world's collectives.
  Damage damage = Damage::kNone;
  bool started = false;
  bool aborted = false;
  size_t pending = 0;
};

struct Pending {
  Batch* batch;
  const NcclOperation* operation;
};

// What the ranks of one unique id share.
struct World {
  int size = 0;
  std::vector<int> devices = {};  // Of the ranks that have joined, else -1.
  std::map<int64_t, std::map<int, Pending>> collectives = {};  // By rank.
  std::map<std::pair<int, int>, std::deque<Pending>> sends = {};
  std::map<std::pair<int, int>, std::deque<Pending>> receives = {};
  // Calls in which the ranks' hosts wait for each other, by number and rank.
  std::map<int64_t, std::map<int, HostCall>> host_calls = {};
};

struct NcclState {
  NcclFaults faults;
  uint64_t ids = 0;
  int live = 0;
  std::map<uint64_t, std::shared_ptr<World>> worlds;
};

NcclState& Global();

// 0 for a type that is not modelled.
size_t SizeOf(ncclDataType_t type);

// Bytes that a call of `size` ranks reads from `send`, and writes to `receive`;
// 0 where `rank` does not use it.
size_t SentBytes(const NcclOperation& operation, int rank, int size);
size_t ReceivedBytes(const NcclOperation& operation, int rank, int size);

// Forgets a window of a communicator, whose memory may then be freed.
void Forget(ncclWindow_t window);

// Lets the calls of a batch meet the other ranks': each is done, and `pending`
// one less, once all that it needs have started.
void Start(Batch& batch);

// Forgets what a batch waits for: nobody can meet it any more.
void Withdraw(Batch& batch);

}  // namespace lockstep::standin

struct ncclComm {
  ncclComm(std::shared_ptr<lockstep::standin::World> world, int rank)
      : world(std::move(world)), rank(rank) {}

  const std::shared_ptr<lockstep::standin::World> world;
  const int rank;
  // Of graphs too, that recorded calls of the communicator; null in them when
  // it is gone.
  const std::shared_ptr<ncclComm*> self = std::make_shared<ncclComm*>(this);
  bool finalized = false;
  int64_t collectives = 0;
  int64_t batches = 0;
  std::vector<std::weak_ptr<lockstep::standin::Batch>> submitted = {};
  int64_t host_calls = 0;
  std::set<ncclWindow_t> windows = {};
};

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_CALLS_H_
