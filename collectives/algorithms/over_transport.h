// Collectives by messages: what runs on any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Runs a call that is valid and, but for kSend and kReceive, that the ranks
// have agreed on. Not kBarrier, kAllocate and kSplit, which move no data:
// kInternal.
//
// The algorithm is for AllReduce and Reduce, and the bits do not depend on it:
// the order of additions (schedule.h) says which there are.
//
//                      up to kTreeOrderBytes            more
//   kRing              all inputs go round the ring,    ring
//                      and each rank folds them
//                      (Reduce: go to the root)
//   kTree              recursive halving and doubling   ring
//   kAuto, kDirect     up to 3 ranks as kRing, else     ring
//                      as kTree
//
// A uniform AllReduce (collective.h) of more is recursive halving and doubling.
// ReduceScatter, AllGather and Broadcast are rings; Scatter, Gather, AllToAll,
// Send and Receive go straight from rank to rank.
//
// kSend and kReceive agree here: the two ranks first tell each other what they
// called. If that is not a Send and a Receive of the same count and type
// between these two, both return kInvalidArgument with both calls, and no data
// has moved; also two that both Send to each other. A rank whose peer does not
// come, or talks to a third, waits until the transport gives up. Other errors:
// the transport's; kInternal if a piece of the wrong size comes.
absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm);

// The rings alone; RingReduce for two ranks and more. Every rank makes the same
// call, which is valid (collective.h) and of an operation that the function is
// for. Communicator has the contracts, schedule.h the order of additions.
// Errors: the transport's, and kInternal if a piece of the wrong size comes.
//
// Each rank sends to the next and receives from the one before it. A piece goes
// on to the next rank as soon as it is there, while later ones still come.
// Partial sums travel as accumulators, complete ones as elements. RingReduce is
// for AllReduce, Reduce and ReduceScatter.
absl::Status RingReduce(Transport& transport, const Collective& call);
absl::Status RingAllGather(Transport& transport, const Collective& call);
absl::Status RingBroadcast(Transport& transport, const Collective& call);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
