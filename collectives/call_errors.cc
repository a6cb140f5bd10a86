// The errors that name calls, in the same words on every backend.
#include "collectives/call_errors.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/call.h"

namespace lockstep {
namespace {

std::string Said(int rank, const Call& call) {
  return absl::StrCat("rank ", rank, " called ", ToString(call));
}

}  // namespace

absl::Status CallsDiffer(absl::string_view what, int rank, const Call& call,
                         int other_rank, const Call& other) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", Said(rank, call), ", ", Said(other_rank, other)));
}

absl::Status CallRefused(int rank, const Call& call, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Said(rank, call), " but ", why));
}

absl::Status CallAfterFailure(int rank, const Call& call,
                              const absl::Status& cause) {
  return absl::FailedPreconditionError(absl::StrCat(
      Said(rank, call), " after the group had failed: ", cause.message()));
}

}  // namespace lockstep
