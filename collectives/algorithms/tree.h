// Recursive halving and doubling, over any transport: few messages.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// Every rank calls the same function, with arguments that are valid
// (collective.h) and agree. Communicator has the contracts, order.h the order
// of additions (tree), tree_schedule.h the messages: of a rank at most
// 2 log2(P) + 2 each way, and as large as the data at most. Allocates one
// accumulator per element.
//
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

absl::Status TreeAllReduce(Transport& transport, ConstBuffer input,
                           Buffer output, ReduceOp op);

absl::Status TreeReduce(Transport& transport, ConstBuffer input, Buffer output,
                        ReduceOp op, int root);

// Reductions in tree order for which whole inputs travel, and are folded where
// the result is wanted: over any transport, for little data on few ranks.

// Every rank calls the same function, with arguments that are valid
// (collective.h) and agree. Communicator has the contracts, order.h the order
// of additions (tree). P-1 messages of the size of the input each way, and P
// inputs of memory: on every rank, or the root.
//
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// The inputs go round the ring.
absl::Status GatherAllReduce(Transport& transport, ConstBuffer input,
                             Buffer output, ReduceOp op);

// The inputs go straight to the root.
absl::Status GatherReduce(Transport& transport, ConstBuffer input,
                          Buffer output, ReduceOp op, int root);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
