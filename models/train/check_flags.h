// What the commands of this folder say of their flags, and of errors.
#ifndef LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_
#define LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

inline constexpr int kUsageError = 2;
inline constexpr int kOtherError = 1;

// kInvalidArgument: "--name=value: what".
template <typename T>
absl::Status FlagError(absl::string_view name, const T& value,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, "=", value, ": ", what));
}

// FlagErrors unless value is in [1, max]; is positive and finite as a float;
// is the name of a model.
absl::Status CheckAtLeastOne(absl::string_view name, int64_t value,
                             int64_t max);
absl::Status CheckPositive(absl::string_view name, double value);
absl::Status CheckModel(absl::string_view model);

// FlagError if `sync_bn` is asked of a model, which there is, that has no batch
// norm.
absl::Status CheckSyncBatchNorm(bool sync_bn, absl::string_view model);

// Writes one line to standard error, "program: message". Returns exit_status.
int ReportError(absl::string_view program, const absl::Status& status,
                int exit_status);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_CHECK_FLAGS_H_
