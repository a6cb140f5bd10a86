// Collectives by messages, on any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Runs a valid call. The ranks must have agreed on it, unless it is kSend or
// kReceive. Returns kInternal for kBarrier, kAllocate and kSplit, which move no
// data.
//
// `algorithm` selects how AllReduce and Reduce run. The bits do not depend on
// it: every algorithm adds in the order of schedule.h.
//
//                      up to kTreeOrderBytes            more
//   kRing              all inputs go round the ring,    ring
//                      and each rank folds them
//                      (Reduce: go to the root)
//   kTree              recursive halving and doubling   ring
//   kAuto, kDirect     up to 3 ranks as kRing, else     ring
//                      as kTree
//
// A uniform AllReduce (collective.h) of more bytes is recursive halving and
// doubling. ReduceScatter, AllGather and Broadcast are rings. Scatter, Gather,
// AllToAll, Send and Receive go straight from rank to rank.
//
// Ranks agree on kSend and kReceive here: the two ranks first send each other
// their calls. Both calls must have the same count and type, and must be a Send
// and a Receive between these two ranks. If they are not, for example if both
// ranks Send, then both ranks return kInvalidArgument with both calls, and no
// data has moved. If the other rank does not come, or communicates with a third
// rank, this rank waits until the transport times out.
//
// Other errors: the transport's; kInternal if a piece of the wrong size comes.
absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
