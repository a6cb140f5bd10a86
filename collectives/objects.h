// Collectives of things that are not one buffer, and work for one rank alone.
#ifndef LOCKSTEP_COLLECTIVES_OBJECTS_H_
#define LOCKSTEP_COLLECTIVES_OBJECTS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/collective.h"
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
// names, types and counts: the message says what differs, nothing is changed,
// and the group can be used further; else the communicator's.
// Cost: an AllGatherObject of the names, and an AllReduce for each.
absl::Status ReduceDict(Communicator& communicator,
                        const std::map<std::string, Buffer>& tensors,
                        bool average = true, CallSite site = CallSite::Here());

// Calls fn where rank() is dst_rank, and returns what it returns; elsewhere
// returns at once: it does not communicate. Without a dst_rank every rank calls
// it, so that the same code runs without a group of more than one. Errors:
// fn's; kInvalidArgument, on every rank, if there is no rank dst_rank.
inline absl::Status OnRank(const Communicator& communicator,
                           std::optional<int> dst_rank,
                           absl::FunctionRef<absl::Status()> fn) {
  if (!dst_rank.has_value()) return fn();
  if (*dst_rank < 0 || *dst_rank >= communicator.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *dst_rank, " is outside [0, ",
                     communicator.world_size(), ")"));
  }
  return communicator.rank() == *dst_rank ? fn() : absl::OkStatus();
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_OBJECTS_H_
