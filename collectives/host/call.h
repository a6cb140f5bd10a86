// What a rank says about a call, so that ranks can see whether they agree.
#ifndef LOCKSTEP_COLLECTIVES_HOST_CALL_H_
#define LOCKSTEP_COLLECTIVES_HOST_CALL_H_

#include <cstdint>
#include <string>

#include "collectives/buffer.h"

namespace lockstep {

enum class Operation : int32_t {
  kAllReduceSum,
  kBroadcast,
  kAllGather,
  kBarrier
};

// Lies in shared memory: plain old data. Fields that an operation has no use
// for keep their default.
struct Call {
  Operation operation = Operation::kBarrier;
  DataType type = DataType::kFloat32;  // Of kAllReduceSum.
  int64_t count = 0;  // Elements of kAllReduceSum, else bytes of each rank.
  int root = 0;       // Of kBroadcast.

  friend bool operator==(const Call&, const Call&) = default;
};

// "AllReduceSum(float32[10])", "Broadcast(16 bytes, root 1)", "Barrier()".
std::string ToString(const Call& call);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_CALL_H_
