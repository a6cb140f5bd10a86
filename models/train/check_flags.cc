// The checks' messages.
#include "models/train/check_flags.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "models/networks/networks.h"

namespace lockstep {

absl::Status CheckAtLeastOne(absl::string_view name, int64_t value,
                             int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return FlagError(name, value, absl::StrCat("must be in [1, ", max, "]"));
}

absl::Status CheckPositive(absl::string_view name, double value) {
  if (value > 0 && std::isfinite(static_cast<float>(value))) {
    return absl::OkStatus();
  }
  return FlagError(name, value, "must be a positive number");
}

absl::Status CheckModel(absl::string_view model) {
  if (FindModel(model) != nullptr) return absl::OkStatus();
  return FlagError("model", model,
                   absl::StrCat("no such model; there are ", ModelNames()));
}

absl::Status CheckSyncBatchNorm(bool sync_bn, absl::string_view model) {
  if (!sync_bn || FindModel(model)->has_batch_norm) return absl::OkStatus();
  return FlagError("sync_bn", "true",
                   absl::StrCat(model, " has no batch norm"));
}

int ReportError(absl::string_view program, const absl::Status& status,
                int exit_status) {
  const std::string line = absl::StrCat(
      program, ": ",
      absl::StrReplaceAll(status.message(), {{"\n", " "}, {"\r", " "}}), "\n");
  std::fputs(line.c_str(), stderr);
  return exit_status;
}

}  // namespace lockstep
