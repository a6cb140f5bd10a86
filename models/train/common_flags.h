// The functions by which the commands of this folder check their flags.
#ifndef LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_
#define LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/cpu/algorithm.h"

namespace lockstep {

// Chooses the algorithm from --convolution and --deterministic_across_machines.
// Errors, in one line that names the flag: an unknown name; Winograd, if oneDNN
// lacks it on this machine; flags that contradict each other.
absl::StatusOr<ConvolutionAlgorithm> ChooseConvolution(absl::string_view text,
                                                       bool deterministic);

// Checks the flags that both commands have. Errors: kInvalidArgument, beginning
// with the flag, for an unknown model, for `sync_bn` with a model without batch
// norm, and for a number out of its range.
absl::Status CheckCommonFlags(absl::string_view model, bool sync_bn, int nproc,
                              int threads_per_rank, double timeout_s);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_COMMON_FLAGS_H_
