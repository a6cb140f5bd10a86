// The operations in which data goes straight from one rank to another, over any
// transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_PAIRWISE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_PAIRWISE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// Every rank calls the same function, with arguments that are valid
// (collective.h) and agree. Communicator has the contracts.
//
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// The root serves whichever rank is ready, and waits only while none is, then
// for the rank that has got on best: not for one that is late.
absl::Status PairwiseScatter(Transport& transport, ConstBuffer input,
                             Buffer output, int root);
absl::Status PairwiseGather(Transport& transport, ConstBuffer input,
                            Buffer output, int root);

// P-1 steps: in step s each rank sends to rank + s and receives from rank - s.
absl::Status PairwiseAllToAll(Transport& transport, ConstBuffer input,
                              Buffer output);

// Runs a kSend or kReceive that is valid. The two ranks first tell each other
// what they called; if it is not a Send and a Receive of the same count and
// type between these two, both return kInvalidArgument with both calls, and no
// data has moved. Two that both Send to each other find out so, too. A rank
// whose peer does not come, or talks to a third, waits until the transport
// gives up.
//
// Other errors: the transport's, and kInternal if a piece of the wrong size
// comes.
absl::Status SendOrReceive(Transport& transport, const Collective& call);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_PAIRWISE_H_
