// Collectives of things that are not one buffer.
#ifndef LOCKSTEP_COLLECTIVES_OBJECTS_H_
#define LOCKSTEP_COLLECTIVES_OBJECTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/buffer.h"
#include "collectives/call_site.h"
#include "collectives/communicator.h"

namespace lockstep {

// Every rank's bytes, in rank order; any bytes, of any size on each rank. For
// objects of a program's own, serialized. Errors: the communicator's.
// Cost: an AllGather of one int64, and one of the bytes.
absl::StatusOr<std::vector<std::string>> AllGatherObject(
    Communicator& communicator, absl::string_view bytes,
    CallSite site = CallSite::Here());

// Replaces every tensor with the average, or else the sum, over all ranks of
// the tensors of that name. Borrows the memory.
//
// Errors: kInvalidArgument, on every rank, if the ranks do not have the same
// names, types and counts: it says which differs, and nothing is changed, and
// the group goes on; else the communicator's.
// Cost: an AllGatherObject of the names, and an AllReduce for each.
absl::Status ReduceDict(Communicator& communicator,
                        const std::map<std::string, Buffer>& tensors,
                        bool average = true, CallSite site = CallSite::Here());

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_OBJECTS_H_
