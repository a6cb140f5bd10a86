// MPI's error codes as statuses.
#include "collectives/mpi/mpi_status.h"

#include <mpi.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

absl::Status MpiStatus(int code, absl::string_view what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  MPI_Error_string(code, text, &size);
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

}  // namespace lockstep
