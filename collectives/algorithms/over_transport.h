// Collectives by messages: what runs on any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/group_options.h"

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
// kSend and kReceive agree here, between the two: kInvalidArgument on both if
// they do not, with both calls. Other errors: the transport's; kInternal if a
// piece of the wrong size comes.
absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
