// Codes and messages for NCCL's results.
#include "collectives/nccl/nccl_status.h"

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

absl::StatusCode Code(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    case ncclRemoteError:
    case ncclSystemError:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::Status(Code(result), absl::StrCat(what, ": NCCL error ",
                                                 static_cast<int>(result), ": ",
                                                 ncclGetErrorString(result)));
}

}  // namespace lockstep
