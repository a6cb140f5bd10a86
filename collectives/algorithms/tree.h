// Recursive halving and doubling, over any transport: few messages.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/buffer.h"
#include "collectives/reduce_op.h"

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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
