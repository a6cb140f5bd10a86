// The one place where NCCL's results become absl::Status.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_STATUS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_STATUS_H_

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// OK for ncclSuccess. Otherwise a message of the form
//   <what>: NCCL error 5: invalid usage
// with the code
//   kInvalidArgument  for a bad argument or usage,
//   kUnavailable      for an error of another rank, or of the way to it,
//   kInternal         for everything else; ncclInProgress too, which is neither
//                     success nor failure: poll before asking.
absl::Status NcclStatus(ncclResult_t result, absl::string_view what);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_STATUS_H_
