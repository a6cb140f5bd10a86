// Collectives by messages: what runs on any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_

#include <cstdint>
#include <span>

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

// The algorithms alone; those that reduce, for two ranks and more. Every rank
// calls the same function, with arguments that are valid (collective.h) and
// agree. Communicator has the contracts, schedule.h the order of additions.
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// Rings: each rank sends to the next and receives from the one before it. A
// piece goes on to the next rank as soon as it is there, while later ones still
// come. Partial sums travel as accumulators, complete ones as elements.
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

// Recursive halving and doubling, in the order of the tree, for few messages: a
// rank sends and receives at most 2 log2(P) + 2, each at most as large as the
// data. Allocates one accumulator per element.
absl::Status TreeAllReduce(Transport& transport, ConstBuffer input,
                           Buffer output, ReduceOp op);
absl::Status TreeReduce(Transport& transport, ConstBuffer input, Buffer output,
                        ReduceOp op, int root);

// The same order for little data on few ranks: whole inputs travel, round the
// ring or straight to the root, and are folded where the result is wanted. P-1
// messages of the size of the input each way, and P inputs of memory: on every
// rank, or the root.
absl::Status GatherAllReduce(Transport& transport, ConstBuffer input,
                             Buffer output, ReduceOp op);
absl::Status GatherReduce(Transport& transport, ConstBuffer input,
                          Buffer output, ReduceOp op, int root);

// Data that goes straight from one rank to another. The root serves whichever
// rank is ready, and waits only while none is, then for the rank that has got
// on best: not for one that is late.
absl::Status PairwiseGather(Transport& transport, ConstBuffer input,
                            Buffer output, int root);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_OVER_TRANSPORT_H_
