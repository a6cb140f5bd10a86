// The collectives as rings, over any transport. Each rank sends to the next
// and receives from the one before it.
#ifndef LOCKSTEP_COLLECTIVES_HOST_RING_H_
#define LOCKSTEP_COLLECTIVES_HOST_RING_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/host/transport.h"

namespace lockstep {

// Every rank calls the same function, with arguments that agree. Messages move
// as pieces of at most max_piece_bytes, and a piece goes on to the next rank as
// soon as it is there, while later ones still come.
//
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// Communicator::AllReduceSum, in the order of additions that ring_schedule.h
// defines.
absl::Status RingAllReduceSum(Transport& transport, Buffer data);

// Communicator::Broadcast. root: in [0, world_size).
absl::Status RingBroadcast(Transport& transport, std::span<std::byte> data,
                           int root);

// Communicator::AllGather, with this rank's input already at its place in
// `output`, a multiple of world_size bytes.
absl::Status RingAllGather(Transport& transport, std::span<std::byte> output);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_RING_H_
