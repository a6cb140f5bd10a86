// How the calls of NCCL's stand-in meet across ranks. All of it is guarded by
// the device's lock (queue.h).
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_WORLD_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tools/cuda/standin/nccl_data.h"
#include "tools/cuda/standin/nccl_faults.h"
#include "tools/cuda/standin/types.h"

namespace lockstep::standin {

// Calls of one rank that start and end together on one stream: a group's.
struct Batch {
  std::shared_ptr<struct World> world = {};
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
};

// Lets the calls of a batch meet the other ranks': each is done, and `pending`
// one less, once all that it needs have started.
void Start(Batch& batch);

// Forgets what a batch waits for: nobody can meet it any more.
void Withdraw(Batch& batch);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_WORLD_H_
