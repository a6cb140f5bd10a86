// Send and Receive, over any transport.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_SEND_RECEIVE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_SEND_RECEIVE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

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

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_SEND_RECEIVE_H_
