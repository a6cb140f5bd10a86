// Reductions in the order of the tree (schedule.h), over any transport: by
// recursive halving and doubling, or from gathered inputs.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// Every rank calls the same function, with arguments that are valid
// (collective.h) and agree. Communicator has the contracts. Errors: the
// transport's, and kInternal if a piece of the wrong size comes.

// Recursive halving and doubling, for few messages: a rank sends and receives
// at most 2 log2(P) + 2, each at most as large as the data. Allocates one
// accumulator per element.
absl::Status TreeAllReduce(Transport& transport, ConstBuffer input,
                           Buffer output, ReduceOp op);

absl::Status TreeReduce(Transport& transport, ConstBuffer input, Buffer output,
                        ReduceOp op, int root);

// For little data on few ranks: whole inputs travel, round the ring or straight
// to the root, and are folded where the result is wanted. P-1 messages of the
// size of the input each way, and P inputs of memory: on every rank, or the
// root.
absl::Status GatherAllReduce(Transport& transport, ConstBuffer input,
                             Buffer output, ReduceOp op);
absl::Status GatherReduce(Transport& transport, ConstBuffer input,
                          Buffer output, ReduceOp op, int root);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_H_
