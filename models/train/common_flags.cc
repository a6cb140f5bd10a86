#include "models/train/common_flags.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/networks/networks.h"

namespace lockstep {

absl::StatusOr<ConvolutionAlgorithm> ChooseConvolution(absl::string_view text,
                                                       bool deterministic) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ConvolutionAlgorithm algorithm,
                            ParseConvolution(text));
  if (!deterministic) return algorithm;
  if (algorithm == ConvolutionAlgorithm::kWinograd) {
    return FlagError("deterministic_across_machines", "true",
                     "contradicts --convolution=winograd, which not every "
                     "machine has");
  }
  return ConvolutionAlgorithm::kDirect;
}

absl::Status CheckCommonFlags(absl::string_view model, bool sync_bn, int nproc,
                              int threads_per_rank, double timeout_s) {
  const absl::StatusOr<bool> has_batch_norm = HasBatchNorm(model);
  if (!has_batch_norm.ok()) {
    return FlagError("model", model, has_batch_norm.status().message());
  }
  if (sync_bn && !*has_batch_norm) {
    return FlagError("sync_bn", "true",
                     absl::StrCat(model, " has no batch norm"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--nproc", nproc, 1, kMaxWorldSize));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--threads_per_rank", threads_per_rank, 1, 1024));
  return CheckSeconds("--timeout_s", timeout_s);
}

}  // namespace lockstep
