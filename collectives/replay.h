// The operation of NcclCommunicator::Replay.
#ifndef LOCKSTEP_COLLECTIVES_REPLAY_H_
#define LOCKSTEP_COLLECTIVES_REPLAY_H_

#include <cstdint>

#include "collectives/collective.h"

namespace lockstep {

// The launch of a graph that has captured `count` calls. It is no enumerator of
// Operation, because it is made only by the NCCL backend and only as a Call:
// the other backends' switches need no case for it.
inline constexpr Operation kReplay =
    static_cast<Operation>(static_cast<int8_t>(Operation::kSplit) + 1);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_REPLAY_H_
