// The collectives as rings, over any transport. Each rank sends to the next
// and receives from the one before it.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// Every rank calls the same function, with arguments that are valid
// (collective.h) and agree. Communicator has the contracts, schedule.h the
// order of additions. Data moves in pieces, and a piece goes on to the next
// rank as soon as it is there, while later ones still come. Partial sums travel
// as accumulators, complete ones as elements.
//
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

absl::Status RingAllReduce(Transport& transport, ConstBuffer input,
                           Buffer output, ReduceOp op);

absl::Status RingReduce(Transport& transport, ConstBuffer input, Buffer output,
                        ReduceOp op, int root);

absl::Status RingReduceScatter(Transport& transport, ConstBuffer input,
                               Buffer output, ReduceOp op);

// counts: elements by rank; empty where all have input.count.
absl::Status RingAllGather(Transport& transport, ConstBuffer input,
                           Buffer output, std::span<const int64_t> counts);

absl::Status RingBroadcast(Transport& transport, Buffer data, int root);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_
