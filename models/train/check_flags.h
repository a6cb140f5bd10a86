// What the two commands say of the flags that both have.
#ifndef LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_
#define LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "collectives/group_options.h"
#include "models/networks/networks.h"

namespace lockstep {

// kInvalidArgument: "--name=value: what".
template <typename T>
absl::Status FlagError(absl::string_view name, const T& value,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, "=", value, ": ", what));
}

// Errors: kInvalidArgument, beginning with the flag, if there is no such model,
// if it has no batch norm that `sync_bn` could synchronise, or if a number is
// out of its range.
inline absl::Status CheckCommonFlags(absl::string_view model, bool sync_bn,
                                     int nproc, int threads_per_rank,
                                     double timeout_s) {
  const ModelInfo* const info = FindModel(model);
  if (info == nullptr) {
    return FlagError("model", model,
                     absl::StrCat("no such model; there are ", ModelNames()));
  }
  if (sync_bn && !info->has_batch_norm) {
    return FlagError("sync_bn", "true",
                     absl::StrCat(model, " has no batch norm"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--nproc", nproc, 1, kMaxWorldSize));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--threads_per_rank", threads_per_rank, 1, 1024));
  return CheckSeconds("--timeout_s", timeout_s);
}

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_
