// MPI's error codes as statuses.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_STATUS_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// OK for MPI_SUCCESS, else kInternal: `what`, and MPI's text for the code.
absl::Status MpiStatus(int code, absl::string_view what);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_STATUS_H_
