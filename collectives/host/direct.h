// The direct algorithm: ranks read, and write, each other's memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_
#define LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/host/group_member.h"
#include "collectives/host/group_memory.h"

namespace lockstep {

// The places of `call`'s buffers, for GroupMember::Enter. An input of up to
// kStagedBytes is copied to where GroupMember stages it.
struct Places {
  Place input;
  Place output;
};
Places PlacesOf(const Collective& call, GroupMember& member,
                const GroupMemory& memory);

// Whether in the running call every rank can reach what it needs. The same on
// every rank.
bool CanRunDirect(const GroupMember& member);

// Runs the call that the member has entered with PlacesOf(call). Not kSend,
// kReceive, kBarrier, kAllocate, kSplit.
//
// Small inputs lie where they were staged, and each rank reduces or copies all
// that it wants from there. Else each rank reduces one segment of all ranks'
// inputs, in the ring's order, and writes it to all ranks' outputs; or copies
// from the others' inputs; and then all meet.
// Cost, of an AllReduce of n bytes: each rank reads n bytes and writes n, and
// where inputs are staged, reads P n.
absl::Status RunDirect(const Collective& call, GroupMember& member,
                       const GroupMemory& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_
