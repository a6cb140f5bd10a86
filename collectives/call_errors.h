// The errors that name calls, in the same words on every backend.
#ifndef LOCKSTEP_COLLECTIVES_CALL_ERRORS_H_
#define LOCKSTEP_COLLECTIVES_CALL_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collectives/call.h"

namespace lockstep {

// kInvalidArgument: "<what>: rank 0 called X at a.cc:1, rank 2 called Y at
// ...".
absl::Status CallsDiffer(absl::string_view what, int rank, const Call& call,
                         int other_rank, const Call& other);

// kInvalidArgument: "rank 1 called X at a.cc:1 but <why>".
absl::Status CallRefused(int rank, const Call& call, absl::string_view why);

// kFailedPrecondition: "rank 1 called X at a.cc:1 after the group had failed:
// <the message of cause>".
absl::Status CallAfterFailure(int rank, const Call& call,
                              const absl::Status& cause);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_CALL_ERRORS_H_
