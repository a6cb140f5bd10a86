// The `tcp` backend: ranks on any hosts, over TCP alone. JoinTcpGroup() joins
// the ranks that a launcher started. CreateGroup("tcp") calls it, and so does
// JoinLaunchedGroup() if ranks are on several hosts.
#ifndef LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_
#define LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

struct TcpGroupOptions {
  // The address at which the other ranks reach this one: an address of this
  // host, or a name that resolves to one here. The other ranks get the number.
  std::string host = "127.0.0.1";
  // The run's token, the same on all ranks, or "". This token, and a number
  // that rank 0 draws and publishes at the rendezvous, are the key of the
  // ranks' proofs. Without a token, anyone who sees the published number can
  // join.
  std::string token;
};

// Joins the group of all ranks of the rendezvous. Returns once all have joined.
// Destroys the rendezvous first. A later rendezvous at the same place, opened
// after this has returned on any rank, thus does not meet this one.
//
// Each pair of ranks has a connection, so all ranks see at once when a process
// ends, on any host. A silent rank (a host without power, a pulled cable, a
// stopped process) is named by every rank at the deadline. Waiting ranks send a
// message eight times within options.timeout.
//
// Errors: the rendezvous's; kInvalidArgument for rank 0's options; the
// system's, with the rank's `host`, if a rank cannot listen there; kUnavailable
// if a rank died while joining; kDeadlineExceeded if a rank cannot be reached,
// with the rank and the reason.
absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroup(
    std::unique_ptr<Rendezvous> rendezvous, const TcpGroupOptions& tcp,
    const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_TCP_GROUP_H_
