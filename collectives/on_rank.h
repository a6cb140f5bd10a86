// Work for one rank alone: writing a file, printing a line.
#ifndef LOCKSTEP_COLLECTIVES_ON_RANK_H_
#define LOCKSTEP_COLLECTIVES_ON_RANK_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/communicator.h"

namespace lockstep {

// Calls fn where rank() is dst_rank, and returns what it returns; elsewhere
// returns at once: it does not communicate. Without a dst_rank every rank calls
// it, so that the same code runs without a group of more than one. Errors:
// fn's; kInvalidArgument, on every rank, if dst_rank is none.
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

#endif  // LOCKSTEP_COLLECTIVES_ON_RANK_H_
