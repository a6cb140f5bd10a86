// The `tcp` backend: ranks on any hosts, over TCP alone. CreateGroup("tcp"),
// and JoinLaunchedGroup() where ranks are on several hosts, are JoinTcpGroup()
// of the ranks that a launcher started.
#ifndef LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_
#define LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

struct TcpGroupOptions {
  // Where the other ranks reach this one: an address of this host, or a name
  // that it has here. They are told the number.
  std::string host = "127.0.0.1";
  // The run's, the same on all ranks, or "". What keys the ranks' proofs is
  // this and a number that rank 0 draws and publishes at the rendezvous: so
  // without a token, who sees what is published there can join.
  std::string token;
};

// Joins the group of all ranks of the rendezvous. Returns once all have joined.
// The rendezvous is destroyed in between: whoever opens the next one at the
// same place, after this has returned on any rank, does not meet this one.
//
// Each pair of ranks has a connection, so a process that ends is seen at once
// by all, on whatever host it was; what is silent (a host without power, a
// cable that is pulled, a stopped process) is named at the deadline, by every
// rank. Ranks that wait say so eight times within options.timeout.
//
// Errors: the rendezvous's; kInvalidArgument for rank 0's options; the
// system's if a rank cannot listen at its `host`, which it names; kUnavailable
// if a rank died while joining; kDeadlineExceeded, with the rank and what kept
// it, if one cannot be reached.
absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroup(
    std::unique_ptr<Rendezvous> rendezvous, const TcpGroupOptions& tcp,
    const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_
