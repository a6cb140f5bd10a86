// Ring algorithms, by messages, on any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// The ring algorithms. RingReduce needs at least two ranks. Every rank makes
// the same valid call (collective.h), of an operation that the function
// supports. RingReduce supports AllReduce, Reduce and ReduceScatter.
// Communicator has the contracts, schedule.h the order of additions. Errors:
// the transport's, and kInternal if a piece of the wrong size comes.
//
// Each rank sends to the next rank and receives from the previous one. A rank
// passes a piece on as soon as it has arrived, while later pieces still come.
// Partial sums travel as accumulators, complete ones as elements.
absl::Status RingReduce(Transport& transport, const Collective& call);
absl::Status RingAllGather(Transport& transport, const Collective& call);
absl::Status RingBroadcast(Transport& transport, const Collective& call);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_H_
